"""Measured acceptance agrees with theory and with speculative runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from specdec_core.decoding import Decoder
from specdec_core.interface import DeterministicDrafter
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.measurement.estimate import estimate
from specdec_core.measurement.measure import measure_acceptance
from specdec_core.measurement.measurement_file import DrafterEntry
from specdec_core.measurement.reject_all import RejectAllRule
from specdec_core.measurement.samples import SampleRecorder, take_samples
from specdec_core.models import wrap_model
from specdec_core.sampling.generators import row_seed
from tests.catalogue import Catalogue
from tests.lossless import PROMPT, VOCAB, enumerate_continuations, next_token, p_value, sample, small_target
from tests.measurement.support import GAMMA, LENGTH, ROWS, context, exact
from tests.tiny import tiny_model
from tests.toys import (
    NO_CONFIG,
    CountingDrafter,
    RememberingDrafter,
    SparseDrafter,
    TableDrafter,
    target_info,
)

ANY = DrafterEntry("any", NO_CONFIG)
TOKENS = 90 * 20


@pytest.fixture(scope="module")
def target(device):
    return small_target(device)


@pytest.fixture(scope="module")
def catalogue(target, tmp_path_factory):
    return Catalogue(target, tmp_path_factory.mktemp("drafters"))


def one_hot(token):
    return torch.nn.functional.one_hot(torch.tensor(token % VOCAB), VOCAB).double()


def table_q(temperature=1.0):
    table = TableDrafter(VOCAB).table.double()
    return lambda prefix: [
        torch.softmax(table[prefix[-1]] / temperature, 0)
        if temperature
        else one_hot(int(table[prefix[-1]].argmax()))
    ]


def sparse_q(_):
    return [0.3 * one_hot(first) + 0.7 * one_hot(first + 1) for first in range(VOCAB - 1)]


DRAFTERS = {
    "dense": (TableDrafter, table_q),
    "point": (CountingDrafter, lambda _=1.0: lambda prefix: [one_hot(prefix[-1] + 1)]),
    "sparse": (SparseDrafter, lambda _=1.0: sparse_q),
}


def agrees(measured, alpha, rates):
    """Four standard errors: a chance of one in 16,000 a number."""
    assert measured.alpha == pytest.approx(alpha, abs=4 * measured.by_position_error[0] + 1e-6)
    assert measured.low <= measured.alpha <= measured.high
    for rate, error, expected in zip(measured.by_position, measured.by_position_error, rates, strict=True):
        assert rate == pytest.approx(expected, abs=4 * error + 1e-6)


@pytest.mark.parametrize("form", DRAFTERS)
def test_alpha_and_positions_are_those_of_the_enumeration(target, form):
    drafter, q_after = DRAFTERS[form]
    plan = context(target, TOKENS, lenience=(1.0, 0.4))
    strict, lenient = measure_acceptance(plan, ANY, drafter(VOCAB), 1.0, ROWS)
    assert strict.tokens == lenient.tokens == TOKENS
    agrees(strict, *exact(target, q_after()))
    agrees(lenient, *exact(target, q_after(), lenience=0.4))
    assert lenient.alpha > strict.alpha + 0.02
    assert strict.proposed == strict.drafted == (1.0,) * GAMMA
    # The test can tell: at every position the bounds are far from saying anything.
    assert max(strict.by_position_error) < 0.03


def test_settings_of_the_target_are_those_of_the_drafter(target):
    measured = measure_acceptance(context(target, TOKENS), ANY, TableDrafter(VOCAB), 0.5, ROWS)[0]
    agrees(measured, *exact(target, table_q(0.5), temperature=0.5))


@pytest.mark.parametrize("form", ["dense", "point"])
def test_argmax_counts_the_tokens_that_are_granted(target, form):
    drafter, q_after = DRAFTERS[form]
    plan = context(target, lenience=(1.0, 0.3))
    for measured in measure_acceptance(plan, ANY, drafter(VOCAB), 0.0, ROWS):
        alpha, rates = exact(target, q_after(0.0), temperature=0.0, lenience=measured.lenience)
        assert measured.alpha == pytest.approx(alpha)
        assert measured.by_position == pytest.approx(rates[: len(measured.by_position)])


def test_argmax_with_a_drafter_that_samples_takes_the_mean_over_its_q(target):
    entry = DrafterEntry("any", NO_CONFIG, SamplingSettings(temperature=1.0))
    plan = context(target, lenience=(1.0, 0.3))
    for measured in measure_acceptance(plan, entry, TableDrafter(VOCAB), 0.0, ROWS):
        alpha, _ = exact(target, table_q(), temperature=0.0, lenience=measured.lenience)
        # No noise at the first position: the mean is over all of q, and not over what was drawn.
        assert measured.alpha == pytest.approx(alpha, abs=1e-6)


@pytest.mark.parametrize("who", ["transformer", "hierarchy-bigram"])
def test_drafters_that_keep_state_follow_the_text_whose_drafts_are_all_refused(target, catalogue, who):
    small = wrap_model(tiny_model("llama", VOCAB, seed=5, sharpness=0.8))
    q_after = lambda prefix: [next_token(small, prefix, SamplingSettings())]  # noqa: E731
    measured = measure_acceptance(context(target, 90 * 8), ANY, catalogue.make(who), 1.0, ROWS)[0]
    agrees(measured, *exact(target, q_after))


STATEFUL = ["transformer", "heads", "chain", "hierarchy-bigram", "hierarchy-chain", "trigram", "copy-recent"]


@pytest.mark.parametrize("who", STATEFUL)
@pytest.mark.parametrize("batch", [1, 3])
def test_argmax_accepts_in_the_shadow_what_a_speculative_run_accepts(target, catalogue, who, batch):
    """Argmax is no matter of chance: where a real step begins, the rule records the same accepted tokens."""
    prompts = [list(PROMPT), [2, 3, 2, 3, 2], [5, 4]][:batch]
    generation = GenerationSettings(max_new_tokens=12, ignore_eos=True)
    rule, argmax = RejectAllRule([1.0]), SamplingSettings(temperature=0)
    shared = {"gamma": 4, "sampling": argmax, "strict": True}
    lengths = [[] for _ in prompts]
    texts = [[] for _ in prompts]
    for report in Decoder(target, catalogue.make(who), rule=rule, **shared).stream(prompts, generation):
        noted = rule.recorded()
        for row, drafted in enumerate(report.outcome.drafted):
            own = noted[1][row, :drafted, 0] if noted and drafted else np.zeros(0)
            lengths[row].append(int(own.cumprod().sum()))
            texts[row] += report.outcome.committed[row]
        assert report.outcome.accepted == (0,) * batch
    accepted = 0
    positions = [0] * batch
    real = Decoder(target, catalogue.make(who), **shared)
    for report in real.stream(prompts, generation):
        for row, new in enumerate(report.outcome.committed):
            # Heads see the target's hidden state only behind the first step, whichever token that ends at.
            if new and not (who == "heads" and positions[row] == 0):
                assert report.outcome.accepted[row] == min(lengths[row][positions[row]], 12 - positions[row]), (
                    row,
                    positions[row],
                )
                accepted += report.outcome.accepted[row]
            positions[row] += len(new)
    assert accepted > 0
    assert [tuple(text) for text in texts] == [row.tokens for row in real.generate(prompts, generation).sequences]


@pytest.mark.parametrize("who", ["dense", "bigram", "chain", "transformer", "copy-recent"])
def test_positions_are_those_counted_in_speculative_steps(target, catalogue, who):
    """The first step of many texts, by the rule and by Algorithm 1."""
    drafter = TableDrafter(VOCAB) if who == "dense" else catalogue.make(who)
    rule = RejectAllRule([1.0])
    recorder = SampleRecorder(GAMMA, frozenset())
    generation = GenerationSettings(max_new_tokens=LENGTH, ignore_eos=True)
    judged, accepted = np.zeros(GAMMA), np.zeros(GAMMA)
    shadowed = Decoder(target, drafter, gamma=GAMMA, strict=True, rule=rule)
    real = Decoder(target, drafter, gamma=GAMMA, strict=True)
    for turn in range(25):
        seeds = [row_seed(turn, row) for row in range(ROWS)]
        run = shadowed.stream([list(PROMPT)] * ROWS, generation, seeds=seeds)
        recorder.add(next(run), rule, range(ROWS))
        run.close()
        run = real.stream([list(PROMPT)] * ROWS, generation, seeds=seeds)
        report = next(run)
        run.close()
        for position in range(GAMMA):
            judged[position] += sum(count > position for count in report.verified)
            accepted[position] += sum(count > position for count in report.outcome.accepted)
    measured = estimate(recorder.samples(), 0, 1.0, 1.0, np.random.default_rng(0))
    for position, (rate, error) in enumerate(zip(measured.by_position, measured.by_position_error, strict=True)):
        count = judged[position]
        assert count > 20
        noise = math.hypot(error, 0.5 / math.sqrt(count))
        assert rate == pytest.approx(accepted[position] / count, abs=4 * noise)


def test_without_drafts_the_text_is_that_of_plain_decoding(target):
    settings = GenerationSettings(max_new_tokens=10, seed=3)
    prompts = [list(PROMPT), [2, 5]]
    for sampling in (SamplingSettings(), SamplingSettings(temperature=0)):
        plain = Decoder(target, sampling=sampling).generate(prompts, settings)
        rule = Decoder(target, TableDrafter(VOCAB), gamma=0, sampling=sampling, rule=RejectAllRule([1.0]))
        assert [row.tokens for row in rule.generate(prompts, settings).sequences] == [
            row.tokens for row in plain.sequences
        ]


def test_with_drafts_the_text_has_the_targets_distribution(target):
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=2, rule=RejectAllRule([1.0, 0.2]), strict=True)
    seen = sample(decoder, 300, 1500)
    assert p_value(seen, enumerate_continuations(target, SamplingSettings())) > 1e-4


class Silent(DeterministicDrafter):
    """Proposes nothing, or two tokens after an even one."""

    def __init__(self, ever):
        super().__init__(NO_CONFIG, target_info(VOCAB))
        self.ever = ever

    def draft(self, tokens, budget):
        return [0, 0][:budget] if self.ever and tokens[-1] % 2 == 0 else []


def test_a_drafter_that_proposes_nothing_has_no_alpha(target):
    measured = measure_acceptance(context(target), ANY, Silent(ever=False), 1.0, ROWS)[0]
    assert measured.tokens == ROWS * GAMMA
    assert (measured.alpha, measured.low, measured.high) == (0.0, 0.0, 0.0)
    assert measured.by_position == (0.0,)
    assert measured.proposed == measured.drafted == (0.0,) * GAMMA


def test_a_drafter_that_proposes_at_times_is_judged_where_it_does(target):
    measured = measure_acceptance(context(target, 600), ANY, Silent(ever=True), 1.0, ROWS)[0]
    assert 0.1 < measured.proposed[0] < 0.9
    assert measured.proposed[1:] == (1.0, 0.0)
    assert measured.drafted == pytest.approx((measured.proposed[0], measured.drafted[1], 0.0))
    assert len(measured.by_position) == 2
    # alpha is that of the tokens proposed: the mean of p(0) where the last token is even.
    even, total = 0.0, 0.0
    texts = {(): 1.0}
    for _ in range(GAMMA):
        longer = {}
        for text, weight in texts.items():
            p = next_token(target, [*PROMPT, *text], SamplingSettings())
            if [*PROMPT, *text][-1] % 2 == 0:
                even, total = even + weight * float(p[0]), total + weight
            longer |= {(*text, token): weight * float(p[token]) for token in range(VOCAB)}
        texts = longer
    assert measured.alpha == pytest.approx(even / total, abs=4 * measured.by_position_error[0])


class Ending(DeterministicDrafter):
    """Guesses the end of the text, and tokens behind it."""

    def draft(self, tokens, budget):
        return [1, 0, 0][:budget]


def test_what_is_drafted_behind_an_end_of_sequence_is_not_judged(target):
    plan = context(target, ignore_eos=False)
    measured = measure_acceptance(plan, ANY, Ending(NO_CONFIG, target_info(VOCAB)), 1.0, ROWS)[0]
    assert len(measured.by_position) == 1
    assert measured.proposed == (1.0, 0.0, 0.0)
    assert measured.tokens >= ROWS * GAMMA


def test_at_temperature_0_each_prompt_has_one_text(target):
    plan = context(target, tokens=50_000, ignore_eos=False)
    measured = measure_acceptance(plan, ANY, TableDrafter(VOCAB), 0.0, ROWS)[0]
    assert ROWS * GAMMA <= measured.tokens <= ROWS * 256


class Seeded(Decoder):
    """SampleRecorder the seeds of all texts."""

    seen: tuple[int, ...] = ()

    def stream(self, prompts, settings=None, observers=(), seeds=None):
        self.seen += tuple(seeds)
        return super().stream(prompts, settings, observers, seeds)


def test_no_text_of_a_prompt_is_taken_twice(target):
    plan = context(target, tokens=200)
    rule = RejectAllRule((1.0,))
    decoder = Seeded(target, TableDrafter(VOCAB), gamma=GAMMA, strict=True, rule=rule)
    take_samples(decoder, rule, [list(PROMPT)] * 3, plan.settings, greedy=False, rows=2, advance=lambda _: None)
    assert len(decoder.seen) > 3 * 10
    assert len(set(decoder.seen)) == len(decoder.seen)


def test_a_drafter_that_remembers_never_knows_a_prompt_that_is_decoded_again(target):
    drafter, rows = RememberingDrafter(VOCAB), 30
    every = ROWS * GAMMA
    once = measure_acceptance(context(target, tokens=every), ANY, drafter, 1.0, rows)[0]
    again = measure_acceptance(context(target, tokens=every), ANY, drafter, 1.0, rows)[0]
    assert again.by_position == once.by_position
    drafter.resets = 0
    measure_acceptance(context(target, tokens=3 * every), ANY, drafter, 1.0, rows)
    assert drafter.resets == 3, "all prompts are decoded three times"
