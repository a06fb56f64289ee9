"""Each controller through the Decoder, held against what its texts are distributed like, worked out exactly."""

import functools
from collections import Counter

import pytest

from specdec_core.decoding.counts import Metrics
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_plugins.lenience.budgeted import BudgetedLenience, BudgetedLenienceConfig
from specdec_plugins.lenience.constant import (
    ConstantLenience,
    ConstantLenienceConfig,
    GreedyLenience,
    GreedyLenienceConfig,
    ScheduleLenience,
    ScheduleLenienceConfig,
    lenience_at,
)
from tests.lossless import EOS, PROMPT, VOCAB, enumerate_continuations, p_value, small_target
from tests.pairwise import some
from tests.plugins.lenience_distribution import Enumeration
from tests.toys import Gamma, TableDrafter

GAMMAS, LENGTH, ROWS, CALLS = (1, 2, 0), 4, 1536, 2
SAMPLED, GREEDY = SamplingSettings(), SamplingSettings(temperature=0)
SCHEDULE = ScheduleLenienceConfig(points=((0, 1.0), (2, 0.2)))

CONTROLLERS = {
    "constant": ConstantLenience(ConstantLenienceConfig(lenience=0.3)),
    "greedy": GreedyLenience(GreedyLenienceConfig(lenience=0.3)),
    "schedule": ScheduleLenience(SCHEDULE),
    "budgeted": BudgetedLenience(BudgetedLenienceConfig(max_deviation=0.4)),
    "budgeted-amply": BudgetedLenience(BudgetedLenienceConfig(max_deviation=2, min_lenience=0.05)),
}
LEAST = {
    "constant": lambda position: 0.3,
    "greedy": lambda position: 0.3,
    "schedule": lambda position: lenience_at(SCHEDULE, position),
    "budgeted": lambda position: 1 / 1.4,  # a position spends no more than is left, so 1 / l - 1 is 0.4 at most
    "budgeted-amply": lambda position: 0.05,
}
SAMPLING = [*(name for name in CONTROLLERS if name != "greedy")]


@pytest.fixture(scope="module")
def target():
    return small_target("cpu")


@pytest.fixture(scope="module")
def enumerated(target):
    """Works out each controller's distribution once."""
    made = {}

    def distribution_of(name, *, greedy, gammas=GAMMAS, length=LENGTH):
        key = (name, greedy, gammas, length)
        if key not in made:
            parts = (TableDrafter(VOCAB), CONTROLLERS[name], gammas, length)
            made[key] = Enumeration(target, *parts, greedy=greedy)
        return made[key]

    return distribution_of


@pytest.fixture(scope="module")
def decode(target):
    """Returns many texts of a controller and the metrics of decoding them; each row has the same gammas."""

    class SameForAllRows(Gamma):
        def open(self, batch):
            session = super().open(batch)
            ask = session.plan
            session.plan = lambda: [ask()[0]] * batch.batch_size
            return session

    @functools.cache
    def decode(name, *, greedy):
        decoder = Decoder(
            target,
            TableDrafter(VOCAB),
            gamma=SameForAllRows(*GAMMAS),
            lenience=CONTROLLERS[name],
            sampling=GREEDY if greedy else SAMPLED,
            draft_sampling=SAMPLED,
            strict=True,
        )
        texts, metrics = [], Metrics()
        for seed in range(CALLS):
            result = decoder.generate([list(PROMPT)] * ROWS, GenerationSettings(max_new_tokens=LENGTH, seed=seed))
            texts += [row.tokens for row in result.sequences]
            metrics += result.metrics
        return texts, metrics

    return decode


@pytest.mark.parametrize("name", some(SAMPLING, 2))
def test_the_texts_are_distributed_as_worked_out(target, enumerated, decode, name):
    distribution = enumerated(name, greedy=False).distribution
    assert sum(distribution.texts.values()) == pytest.approx(1)
    texts, metrics = decode(name, greedy=False)
    assert p_value(Counter(texts), distribution.texts) > 1e-4
    count = len(texts)
    assert metrics.deviation / count == pytest.approx(distribution.spent, abs=0.02)
    assert metrics.accepted / count == pytest.approx(distribution.kept, abs=0.06)
    assert metrics.alpha == pytest.approx(distribution.kept / distribution.judged, abs=0.02)
    # It is no test of lenience if exact decoding passes it too.
    assert p_value(Counter(texts), enumerate_continuations(target, SAMPLED, length=LENGTH)) < 1e-4


@pytest.mark.parametrize("name", SAMPLING)
def test_no_token_is_likelier_than_its_bound(enumerated, name):
    made = enumerated(name, greedy=False)
    for prefix in made.distribution.prefixes():
        bound = made.p(prefix) / LEAST[name](len(prefix))
        assert (made.distribution.after(prefix) <= bound + 1e-9).all(), prefix


@pytest.mark.parametrize("name", SAMPLING)
def test_the_whole_text_is_as_near_as_its_deviation_says(target, enumerated, name):
    exact = enumerate_continuations(target, SAMPLED, length=LENGTH)
    distribution = enumerated(name, greedy=False).distribution
    variation = sum(abs(distribution.texts.get(text, 0) - p) for text, p in exact.items()) / 2
    assert 0.01 < variation <= distribution.spent + 1e-9


@pytest.mark.parametrize("name", some(CONTROLLERS, 1))
def test_greedy_decoding_is_as_worked_out_too(enumerated, decode, name):
    made = enumerated(name, greedy=True)
    texts, metrics = decode(name, greedy=True)
    assert p_value(Counter(texts), made.distribution.texts) > 1e-4
    assert metrics.deviation / len(texts) == pytest.approx(made.distribution.spent, abs=0.05)
    assert metrics.alpha == pytest.approx(made.distribution.kept / made.distribution.judged, abs=0.02)
    others = 0
    for text, times in Counter(texts).items():
        for position, token in enumerate(text):
            p = made.p(text[:position])
            assert p[token] >= LEAST[name](position) * p.max() * (1 - 1e-4), text
            others += times * int(p[token] < p.max())
    # Every token that is not the greedy was paid for, and nothing else was.
    assert metrics.deviation == others
    # A budget below a whole token buys nothing here.
    assert (others == 0) == (name == "budgeted")


@pytest.mark.slow
def test_the_greedy_form_leaves_sampling_exact(target, decode):
    texts, metrics = decode("greedy", greedy=False)
    assert p_value(Counter(texts), enumerate_continuations(target, SAMPLED, length=LENGTH)) > 1e-4
    assert metrics.deviation == 0


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("budget", [0.0, 0.05, 1.0, 2.5])
def test_no_text_whatsoever_spends_more_than_the_budget(target, budget, greedy):
    controller = BudgetedLenience(BudgetedLenienceConfig(max_deviation=budget, min_lenience=0.01))
    for gammas, length in (((2,), 4), ((3,), 4), ((1,), 2), ((2,), 1)):
        texts = Enumeration(target, TableDrafter(VOCAB), controller, gammas, length, greedy=greedy).distribution
        assert texts.most <= budget
        affordable = length > 1 and budget >= (1 if greedy else 0.05)
        assert (texts.most > 0) == affordable


def test_an_end_inside_a_draft_is_part_of_what_was_worked_out(enumerated):
    distribution = enumerated("budgeted", greedy=False).distribution
    assert sum(weight for text, weight in distribution.texts.items() if text[-1] == EOS) > 0.05
