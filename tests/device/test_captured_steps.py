"""Steps whose verification is captured with the target's pass: tokens, fallbacks, and their cost to the host."""

import warnings
from copy import copy, deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch

from specdec_core.decoding import captured
from specdec_core.decoding.captured import CapturedDecision, CapturedLine
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import Dense, Drafter, DraftSession, ModelError, Proposal
from specdec_core.interface.errors import PluginWarning
from specdec_core.models import compile_model, wrap_model
from specdec_core.models.fast import cuda_graphs, static
from specdec_core.testing.harness.tiny_target import VOCAB
from tests.device.cases import PROMPTS, catalogue_on, decode, target_on, tokens_of
from tests.device.counting import Case
from tests.lossless import SETTINGS
from tests.pairwise import pairwise
from tests.toys import NO_CONFIG, target_info

DRAFTERS = (None, "transformer", "bigram", "copy-recent", "early-exit", "eagle3", "chain")
CAPTURED = ("transformer", "early-exit")
"""Those whose drafting is captured, too."""


@pytest.fixture
def seen(monkeypatch):
    """Let decisions be replayed from the first on, without eager ones to compare; give a list of their kinds."""
    kinds = []
    for name in ("decide", "draft"):
        run = getattr(cuda_graphs.GraphPasses, name)

        def listed(passes, *arguments, run=run):
            output = run(passes, *arguments)
            kinds.append(arguments[-1][0])
            return output

        monkeypatch.setattr(cuda_graphs.GraphPasses, name, listed)
    monkeypatch.setattr(static, "CHECKED", 0)
    return kinds


@cache
def drafter_on(where, who):
    drafter = catalogue_on(where, "llama").make(who, afresh=True)
    if where != "cpu" and who in CAPTURED:
        drafter.loaded = compile_model(drafter.loaded)
    return drafter


def made(where, who=None, gamma=3, target=None, **settings):
    drafted = {"drafter": drafter_on(where, who), "gamma": gamma} if who else {}
    return Decoder(target or target_on(where, "llama", graphs=True), **drafted, **settings)


def eager_and_captured(device, who=None, rows=4, ignore_eos=False, **settings):
    """Return the tokens of the CPU, and those of the device."""
    return [decode(made(where, who, **settings), rows, ignore_eos=ignore_eos) for where in ("cpu", device)]


@pytest.mark.parametrize(
    ("who", "sampling", "rows", "ignore_eos"), pairwise(DRAFTERS, SETTINGS, (1, 4), (False, True))
)
def test_tokens_are_those_of_the_cpu(device, seen, who, sampling, rows, ignore_eos):
    expected, found = eager_and_captured(device, who, rows, ignore_eos, sampling=SETTINGS[sampling])
    assert found == expected
    assert set(map(type, seen)) == ({CapturedDecision, CapturedLine} if who in CAPTURED else {CapturedDecision})


@pytest.mark.parametrize("gamma", range(1, 9))
@pytest.mark.parametrize("temperature", [0, 1])
def test_each_width_and_length_of_the_graphs(device, seen, monkeypatch, gamma, temperature):
    """Blocks of 7 columns and of 9 to 11 are padded; texts grow over graphs of 8, 16 and 32 slots."""
    monkeypatch.setattr(cuda_graphs, "SHORTEST", 8)
    for rows in (1, 4):
        fresh = compile_model(replace(target_on(device, "llama"), passes=None))
        drafter_on.cache_clear()
        expected = decode(made("cpu", "transformer", gamma, temperature=temperature), rows, ignore_eos=True)
        device_made = made(device, "transformer", gamma, fresh, temperature=temperature)
        assert decode(device_made, rows, ignore_eos=True) == expected
    assert {CapturedDecision, CapturedLine} == set(map(type, seen))


@pytest.mark.parametrize("lenience", [0.1, {"name": "budgeted", "max_deviation": 2.0, "min_lenience": 0.2}])
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("who", ["transformer", "copy-recent"])
def test_lenience_and_what_it_costs(device, seen, lenience, temperature, who):
    costs, texts = [], []
    for where in ("cpu", device):
        decoder = made(where, who, gamma=4, temperature=temperature, lenience=lenience)
        result = decoder.generate(PROMPTS, max_new_tokens=12, seed=3, ignore_eos=True)
        texts.append(tokens_of(result))
        costs.append(result.metrics.deviation)
    assert texts[0] == texts[1]
    assert costs[0] == pytest.approx(costs[1])
    assert costs[0] > 0
    assert any(getattr(kind, "lenient", False) for kind in seen)


@pytest.mark.parametrize(
    ("settings", "reason", "uncaptured"),
    [
        (
            {"repetition_penalty": 1.2},
            "logits processors, biases and constraints may read",
            {"drafts", "verified"},
        ),
        ({"rule": "block"}, "BlockRule", {"verified"}),
        ({"gamma": {"name": "tree", "widths": (2, 1)}}, "token trees", {"verified"}),
        ({"gamma": {"name": "confidence", "threshold": 0.1, "max_gamma": 3}}, "reads the confidence", {"drafts"}),
    ],
)
def test_what_is_not_captured_runs_pass_by_pass_and_is_told_once(device, seen, settings, reason, uncaptured):
    expected = decode(made("cpu", "transformer", **settings))
    with pytest.warns(PluginWarning, match=reason) as told:
        assert decode(made(device, "transformer", **settings)) == expected
    parts = {"drafts": "drafts are captured pass by pass", "verified": "drafts are verified after"}
    for part, text in parts.items():
        assert sum(text in str(one.message) for one in told) == (part in uncaptured)
    assert len(told) == len(uncaptured)
    assert any(isinstance(kind, CapturedDecision) for kind in seen) == ("verified" not in uncaptured)


class Wrong(Drafter):
    """Gives a q that does not sum to 1 in its third draft."""

    def __init__(self, where, value):
        super().__init__(NO_CONFIG, target_info(VOCAB))
        self.where, self.value = where, value

    def open(self, session):
        return WrongSession(self.where, self.value)


class WrongSession(DraftSession):
    def __init__(self, where, value):
        self.where, self.value, self.steps = where, value, 0

    def propose(self, request):
        self.steps += 1
        size = (len(request.tokens), max(request.budget))
        q = torch.full((*size, VOCAB), 1 / VOCAB if self.steps < 3 else self.value, device=self.where)
        tokens = torch.arange(size[1], device=self.where).expand(size) % VOCAB
        return Proposal(tokens, tuple(request.budget), Dense(q))


@pytest.mark.parametrize("value", [0.5, float("nan")])
def test_a_draft_that_is_wrong_is_dropped_and_leaves_nothing_behind(device, seen, value):
    results = []
    for where in ("cpu", device):
        decoder = Decoder(target_on(where, "llama", graphs=True), Wrong(where, value), gamma=7, temperature=1)
        with pytest.warns(PluginWarning, match="q does not sum to 1"):
            results.append(decoder.generate(PROMPTS, max_new_tokens=30, seed=3, ignore_eos=True))
    # Drafts that are accepted to the end, in a graph that has room for one token more.
    for where in ("cpu", device):
        decoder = made(where, "transformer", gamma=6, temperature=1)
        decoder.drafter = copy(decoder.drafter)
        decoder.drafter.loaded = target_on(where, "llama")
        results.append(decoder.generate(PROMPTS, max_new_tokens=30, seed=3, ignore_eos=True))
    for expected, found in zip(results[::2], results[1::2], strict=True):
        assert [one.tokens for one in expected] == [one.tokens for one in found]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_draft_model_with_nan_is_dropped(device, seen, temperature):
    """Its logits are NaN after a token that is not in the prompt, so that the first drafts are right."""
    results = []
    for where in ("cpu", device):
        drafter = copy(drafter_on(where, "transformer"))
        model = deepcopy(drafter.loaded.model)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        drafter.loaded = wrap_model(model)
        if where != "cpu":
            drafter.loaded = compile_model(drafter.loaded)
        with torch.no_grad():
            model.get_input_embeddings().weight[0] = float("nan")
        decoder = Decoder(target_on(where, "llama", graphs=True), drafter, gamma=4, temperature=temperature)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)
            results.append(decoder.generate([[4, 3, 2, 1]], max_new_tokens=20, seed=2, ignore_eos=True))
    expected, found = results
    assert found[0].tokens == expected[0].tokens
    assert [(one.step, one.message) for one in found.failures] == [
        (one.step, one.message) for one in expected.failures
    ]
    assert (len(found.failures) > 0) == (temperature > 0)
    assert any(isinstance(kind, CapturedLine) for kind in seen)


def test_a_draft_is_read_where_its_own_model_has_written_it(device, seen):
    """Models that draft in turn for one target, whose graph reads the draft where the last one has written it."""
    expected = decode(made("cpu", "transformer", temperature=1), ignore_eos=True)
    for _ in range(2):
        drafter = copy(drafter_on(device, "transformer"))
        drafter.loaded = compile_model(replace(drafter.loaded, passes=None))
        decoder = Decoder(target_on(device, "llama", graphs=True), drafter, gamma=3, temperature=1)
        assert decode(decoder, ignore_eos=True) == expected


def test_a_decision_that_waits_is_not_captured(device, monkeypatch):
    run = captured.decide

    def waiting(*arguments, **rest):
        result = run(*arguments, **rest)
        result.token[0].item()
        return result

    fresh = compile_model(replace(target_on(device, "llama"), passes=None))
    expected = decode(made("cpu", "transformer", temperature=1))
    monkeypatch.setattr(captured, "decide", waiting)
    with pytest.warns(RuntimeWarning, match="not permitted when stream is capturing.*Decoding goes on without"):
        assert decode(made(device, "transformer", target=fresh, temperature=1)) == expected


def test_a_gpu_that_a_capture_leaves_unusable_ends_the_run(device, monkeypatch):
    def fail(*_):
        raise RuntimeError("operation failed due to a previous error during capture")

    loaded = target_on(device, "llama")
    fresh = replace(loaded, passes=cuda_graphs.GraphPasses(loaded, 1e-4, fail))
    monkeypatch.setattr(static, "synchronize", fail)
    with pytest.raises(ModelError, match=r"cannot use cuda.* with compile: false"):
        decode(made(device, target=fresh))


@pytest.mark.parametrize("burnt", [0, 2])
def test_an_input_that_is_burnt_in_is_noticed(device, burnt):
    """A capture that reads a copy of what Python knows, or of the draft, gives right answers once."""

    def stale(function, arguments, cache):
        first = arguments[burnt].clone()
        return lambda *given: function(*(first if n == burnt else each for n, each in enumerate(given)))

    loaded = target_on(device, "llama")
    passes = cuda_graphs.GraphPasses(loaded, 1e-4, stale)
    passes.__class__ = type("OnlyDecisions", (cuda_graphs.GraphPasses,), {"run": lambda *_: None})
    decoder = made(device, "transformer", target=replace(loaded, passes=passes), temperature=1)
    with pytest.warns(RuntimeWarning, match="relative error"):
        decode(decoder, ignore_eos=True)


@pytest.mark.parametrize(("temperature", "rows"), [(0, 1), (1, 4)])
@pytest.mark.parametrize(("who", "replays"), [(None, 1), ("copy-recent", 1), ("transformer", 2)])
def test_a_step_is_a_replay_or_two_and_one_fetch(simulated, who, replays, temperature, rows):
    cost, counts = Case("", temperature, rows, who, captured=True).cost()
    assert (cost.fetches, cost.blocking, cost.pageable) == (1, 0, 0)
    steps = counts.of("fetch")
    assert replays * (steps - 1) < counts.of("replay") <= replays * steps  # the last may have no room for a draft
    assert cost.launches <= 6
    assert cost.pinned <= 2
