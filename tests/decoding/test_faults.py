"""What plugins do wrong costs speed and never a token; under strict it raises; bad prompts say what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specdec_core.border import (
    Dense,
    Drafter,
    DraftSession,
    PluginConfig,
    PointMass,
    Proposal,
    SessionInfo,
    Sparse,
    TargetInfo,
)
from specdec_core.decoding import Decoder
from specdec_core.errors import ConfigError, NumericsError, PluginError, PromptError
from specdec_core.models import wrap_model
from specdec_core.settings import GenerationSettings, SamplingSettings
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, Gamma, Lenience, TableDrafter

V = 40
PROMPTS = ([3, 4, 5], [7, 8])
SETTINGS = GenerationSettings(max_new_tokens=10, ignore_eos=True)
ARGMAX = SamplingSettings(temperature=0)


@pytest.fixture(scope="module")
def target():
    return wrap_model(tiny_model("llama", V))


class Scripted(Drafter):
    """Drafts well-behaved tokens twice, then does what the script says."""

    def __init__(self, script, when="propose"):
        super().__init__(PluginConfig(), TargetInfo(vocab_size=V))
        self.script, self.when = script, when
        self.closed = 0

    def open(self, session: SessionInfo) -> DraftSession:
        if self.when == "open":
            self.script(None)
        return _ScriptedSession(self)


class _ScriptedSession(DraftSession):
    def __init__(self, drafter):
        self.drafter, self.step = drafter, 0

    def propose(self, request):
        self.step += 1
        if self.step > 2 and self.drafter.when == "propose":
            return self.drafter.script(request)
        return Proposal.from_rows([[5] * n for n in request.budget])

    def commit(self, outcome):
        if self.step > 2 and self.drafter.when == "commit":
            self.drafter.script(outcome)

    def close(self):
        self.drafter.closed += 1


def boom(_):
    raise RuntimeError("the drafter's own bug")


def tokens(request, fill=5):
    return torch.full((len(request.budget), max(request.budget)), fill)


def dense(request, change):
    q = torch.full((len(request.budget), max(request.budget), V), 1 / V)
    change(q)
    return Proposal(tokens(request), request.budget, Dense(q))


def sparse(request, ids, weights):
    shape = (len(request.budget), max(request.budget), len(ids))
    q = Sparse(torch.tensor(ids).expand(shape), torch.tensor(weights).expand(shape))
    return Proposal(tokens(request), request.budget, q)


FAULTS = {
    "raises": (boom, "RuntimeError: the drafter's own bug"),
    "returns nothing": (lambda _: None, "returned NoneType"),
    "too many tokens": (lambda r: Proposal.from_rows([[5] * (n + 1) for n in r.budget]), "its budget was"),
    "wrong batch": (lambda r: Proposal.from_rows([[5]]), "shape"),
    "lengths beyond columns": (lambda r: Proposal(tokens(r)[:, :0], r.budget, PointMass()), "columns"),
    "float tokens": (lambda r: Proposal(tokens(r).float(), r.budget, PointMass()), "int64"),
    "id too large": (lambda r: Proposal(tokens(r, V), r.budget, PointMass()), "outside the vocabulary"),
    "id negative": (lambda r: Proposal(tokens(r, -1), r.budget, PointMass()), "outside the vocabulary"),
    "q does not sum to 1": (lambda r: dense(r, lambda q: q.mul_(0.9)), "sum to 1"),
    "q is NaN": (lambda r: dense(r, lambda q: q.fill_(float("nan"))), "NaN"),
    "q is negative": (lambda r: dense(r, lambda q: q[..., 0:2].add_(torch.tensor([-0.5, 0.5]))), "negative"),
    "q gives its own token 0": (
        lambda r: dense(r, lambda q: q[..., 5:7].copy_(torch.tensor([0, 2 / V]))),
        "gives 0",
    ),
    "q of another width": (
        lambda r: Proposal(tokens(r), r.budget, Dense(torch.ones(2, max(r.budget), 3) / 3)),
        "dense q",
    ),
    "sparse sum": (lambda r: sparse(r, [5, 6], [0.5, 0.2]), "sum to 1"),
    "sparse own": (lambda r: sparse(r, [4, 6], [0.5, 0.5]), "gives 0"),
    "sparse id": (lambda r: sparse(r, [5, V], [0.5, 0.5]), "outside the vocabulary"),
    "q of no form": (lambda r: Proposal(tokens(r), r.budget, "dense"), "must be PointMass"),
    "logits of another width": (lambda r: r.sample(torch.zeros(2, 3)), "[B, V]"),
    "NaN logits": (lambda r: (r.sample(torch.full((2, V), float("nan"))), r.proposal())[1], "NaN"),
    "draws past its budget": (lambda r: [r.sample(torch.zeros(2, V)) for _ in range(9)], "budget was spent"),
}


def decode(target, drafter, *, strict=False, sampling=ARGMAX, gamma=None, lenience=None):
    decoder = Decoder(
        target, drafter, gamma=gamma or Gamma(3), lenience=lenience, sampling=sampling, strict=strict
    )
    return decoder.generate(PROMPTS, SETTINGS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_drafter_that_does_wrong_loses_no_token(target, fault):
    script, message = FAULTS[fault]
    drafter = Scripted(script)
    # "NaN logits" shows in q only where q is recorded in full, so that one drafts with a temperature.
    sampling = SamplingSettings() if fault == "NaN logits" else ARGMAX
    result = decode(target, drafter, sampling=sampling)
    assert [len(row.tokens) for row in result.rows] == [10, 10]
    if sampling is ARGMAX:
        plain = Decoder(target, sampling=ARGMAX).generate(PROMPTS, SETTINGS)
        assert [row.tokens for row in result.rows] == [row.tokens for row in plain.rows]
    (failure,) = result.failures
    assert failure.plugin == "Scripted"
    assert failure.step == 2
    assert message in failure.message
    assert result.metrics.target_calls <= 10
    assert drafter.closed == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_under_strict_it_raises_with_the_plugins_name(target, fault):
    script, _ = FAULTS[fault]
    sampling = SamplingSettings() if fault == "NaN logits" else ARGMAX
    with pytest.raises(PluginError, match="Scripted failed at step 2"):
        decode(target, Scripted(script), strict=True, sampling=sampling)


def test_what_lies_beyond_a_draft_is_ignored(target):
    def ragged(request):
        lengths = (request.budget[0], 0)
        q = torch.full((2, max(request.budget), V), 1 / V)
        q[1] = float("nan")
        return Proposal(torch.where(torch.tensor([[True], [False]]), tokens(request), 10**6), lengths, Dense(q))

    result = decode(target, Scripted(ragged), strict=True, sampling=SamplingSettings())
    assert [len(row.tokens) for row in result.rows] == [10, 10]


@pytest.mark.parametrize("when", ["open", "commit"])
def test_a_drafter_may_fail_at_any_call(target, when):
    result = decode(target, Scripted(boom, when))
    assert [len(row.tokens) for row in result.rows] == [10, 10]
    assert len(result.failures) == 1


def test_argmax_drafts_from_nan_logits_are_still_verified(target):
    # Under argmax a NaN gives some token; whatever it is, it is kept only if it is the target's own.
    nan = lambda r: (r.sample(torch.full((2, V), float("nan"))), r.proposal())[1]  # noqa: E731
    result = decode(target, Scripted(nan))
    plain = Decoder(target, sampling=ARGMAX).generate(PROMPTS, SETTINGS)
    assert [row.tokens for row in result.rows] == [row.tokens for row in plain.rows]


class WildGamma(Gamma):
    def open(self, batch):
        session = super().open(batch)
        wild = iter([[2, 2], [2, 99]])
        session.gamma = lambda: next(wild)
        return session


def test_a_controller_that_does_wrong_is_reported_and_the_last_good_value_kept(target):
    result = decode(target, CountingDrafter(V), gamma=WildGamma(3))
    assert [len(row.tokens) for row in result.rows] == [10, 10]
    assert result.failures[0].plugin == "WildGamma"
    assert "gamma [2, 99]" in result.failures[0].message
    assert "whole numbers from 0 to max_gamma (3)" in result.failures[0].message


class Unsteady(Gamma):
    """Asks for something else in every step: the script says what, good or bad."""

    def __init__(self, script, most=3):
        super().__init__(most)
        self.script = script

    def open(self, batch):
        session = super().open(batch)
        steps = iter(range(100))
        session.gamma = lambda: self.script(next(steps))
        return session


@pytest.mark.parametrize("bad", [[2, 4], [-1, 2], [2], [2, 2, 2], [2, 1.5], [2, None], None, 2])
def test_a_gamma_that_is_out_of_bounds_in_some_steps_costs_these_steps_only(target, bad):
    script = lambda step: bad if step in (1, 3) else [1 + step % 3, 0]  # noqa: E731
    reports = []
    decoder = Decoder(target, CountingDrafter(V), gamma=Unsteady(script), sampling=ARGMAX)
    run = decoder.stream(PROMPTS, SETTINGS)
    while True:
        try:
            reports.append(next(run))
        except StopIteration as end:
            result = end.value
            break
    assert [report.asked[0] for report in reports[:6]] == [1, 1, 3, 3, 2, 3]
    assert [(failure.plugin, failure.step, failure.times) for failure in result.failures] == [("Unsteady", 1, 2)]


class Boundless(Gamma):
    """Says no bound that tokens could be drafted up to."""

    def __init__(self, most):
        super().__init__(0)
        self.most = most

    @property
    def max_gamma(self):
        return self.most() if callable(self.most) else self.most


@pytest.mark.parametrize("most", [lambda: 1 // 0, None, 2.5, -1], ids=["raises", "none", "fraction", "negative"])
def test_without_a_bound_of_gamma_nothing_is_drafted(target, most):
    result = decode(target, CountingDrafter(V), gamma=Boundless(most))
    assert [len(row.tokens) for row in result.rows] == [10, 10]
    assert result.metrics.drafted == 0
    (failure,) = result.failures
    assert (failure.plugin, failure.times) == ("Boundless", 1)
    with pytest.raises(PluginError, match="Boundless failed at step 0"):
        decode(target, CountingDrafter(V), gamma=Boundless(most), strict=True)


def test_a_controller_that_errs_in_every_step_with_other_numbers_is_one_failure(target):
    result = decode(target, CountingDrafter(V), gamma=Unsteady(lambda step: [100 + step, -step]))
    (failure,) = result.failures
    assert failure.times == result.metrics.target_calls
    assert "[100, 0]" in failure.message


class Watcher(Gamma):
    """Watches a draft, and answers as the script says."""

    def __init__(self, script):
        super().__init__(3, stop_below=0.5)
        self.script = script

    def open(self, batch):
        session = super().open(batch)
        session.keep_drafting = self.script
        return session


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (boom, "RuntimeError: the drafter's own bug"),
        (lambda confidence: [False], "answered for 1 rows; the batch has 2. All draft on"),
        (lambda confidence: [], "answered for 0 rows"),
        (lambda confidence: [False] * 3, "answered for 3 rows"),
        (lambda confidence: None, "NoneType"),
    ],
)
def test_a_controller_that_fails_while_it_watches_a_draft_is_not_the_drafters_fault(target, script, message):
    gamma = Watcher(script)
    result = decode(target, TableDrafter(V), gamma=gamma, sampling=SamplingSettings())
    (failure,) = result.failures
    assert failure.plugin == "Watcher"
    assert message in failure.message
    assert failure.step == 0
    # All draft on, and it is asked again after every token.
    unwatched = decode(target, TableDrafter(V), sampling=SamplingSettings())
    assert [row.tokens for row in result.rows] == [row.tokens for row in unwatched.rows]
    assert failure.times > result.metrics.target_calls
    with pytest.raises(PluginError, match="Watcher failed at step 0"):
        decode(target, TableDrafter(V), gamma=gamma, sampling=SamplingSettings(), strict=True)


class ErraticLenience(Lenience):
    """Says something else in every step: the script says what, good or bad."""

    def __init__(self, script, observe=None):
        super().__init__(1.0)
        self.script, self.observe = script, observe

    def open(self, batch):
        session = super().open(batch)
        self.asked = 0

        def lenience():
            self.asked += 1
            return self.script(self.asked - 1)

        session.lenience = lenience
        if self.observe is not None:
            session.observe = self.observe
        return session


BAD_LENIENCES = {
    "above 1": [0.5, 1.5],
    "zero": [0.5, 0.0],
    "negative": [0.5, -0.1],
    "NaN": [0.5, float("nan")],
    "infinite": [0.5, float("inf")],
    "one row": [0.5],
    "three rows": [0.5, 0.5, 0.5],
    "no position": [0.5, []],
    "one bad position": [0.5, [0.5, 0.5, 1.5]],
    "words": ["half", "half"],
    "nothing": None,
    "a number": 0.5,
}


@pytest.mark.parametrize("bad", BAD_LENIENCES)
@pytest.mark.parametrize("sampling", [ARGMAX, SamplingSettings()], ids=["argmax", "sampled"])
def test_a_lenience_that_is_wrong_is_reported_once_and_the_last_good_one_kept(target, bad, sampling):
    good = [[0.001, 0.5], 0.01]
    broken = ErraticLenience(lambda step: good if step < 2 else BAD_LENIENCES[bad])
    result = decode(target, TableDrafter(V), lenience=broken, sampling=sampling)
    (failure,) = result.failures
    assert failure.plugin == "ErraticLenience"
    assert failure.step == 2
    assert failure.times == broken.asked - 2
    kept = decode(target, TableDrafter(V), lenience=ErraticLenience(lambda step: good), sampling=sampling)
    assert not kept.failures
    assert [row.tokens for row in result.rows] == [row.tokens for row in kept.rows]
    assert result.metrics.deviation == kept.metrics.deviation > 0
    with pytest.raises(PluginError, match="ErraticLenience failed at step 2"):
        decode(target, TableDrafter(V), lenience=broken, sampling=sampling, strict=True)


@pytest.mark.parametrize("script", [boom, lambda step: [0.5, 2]], ids=["raises", "out of range"])
def test_a_lenience_that_was_never_good_is_strict(target, script):
    broken = ErraticLenience(script)
    result = decode(target, TableDrafter(V), lenience=broken, sampling=SamplingSettings())
    strict = decode(target, TableDrafter(V), sampling=SamplingSettings())
    assert [row.tokens for row in result.rows] == [row.tokens for row in strict.rows]
    assert result.metrics.deviation == 0
    (failure,) = result.failures
    assert (failure.step, failure.times) == (0, broken.asked)
    # Asked for drafts alone: at the end there is room for the target's token only.
    assert 0 < broken.asked < result.metrics.target_calls


def test_a_lenience_that_cannot_be_opened_is_strict(target):
    class Unopened(Lenience):
        open = boom

    result = decode(target, TableDrafter(V), lenience=Unopened(0.1), sampling=SamplingSettings())
    strict = decode(target, TableDrafter(V), sampling=SamplingSettings())
    assert [row.tokens for row in result.rows] == [row.tokens for row in strict.rows]
    assert [(failure.plugin, failure.times) for failure in result.failures] == [("Unopened", 1)]


def test_a_controller_that_cannot_take_reports_is_asked_on(target):
    deaf = ErraticLenience(lambda step: [0.5, [1.0, 0.5]], observe=boom)
    result = decode(target, TableDrafter(V), lenience=deaf, sampling=SamplingSettings())
    (failure,) = result.failures
    assert failure.times == result.metrics.target_calls
    assert result.metrics.deviation > 0


def test_failures_that_are_told_apart_stand_in_their_order(target):
    script = lambda step: [2, 2] if step % 2 == 0 else [9, 9]  # noqa: E731
    lenience = ErraticLenience(lambda step: [0.5, 0.5] if step < 2 else [2, 2])
    decoder = Decoder(target, TableDrafter(V), gamma=Unsteady(script), lenience=lenience)
    found = decoder.generate(PROMPTS, SETTINGS).failures
    assert [(failure.plugin, failure.step) for failure in found] == [("Unsteady", 1), ("ErraticLenience", 2)]


def test_a_drafter_that_swaps_the_recorded_q_is_found_out(target):
    def swap(request):
        request.sample(torch.zeros(2, V))
        made = request.proposal()
        return replace(made, q=Dense(torch.full((2, 1, V), 0.5)))

    result = decode(target, Scripted(swap), sampling=SamplingSettings())
    assert "sum to 1" in result.failures[0].message


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
@pytest.mark.parametrize("sampling", [ARGMAX, SamplingSettings()])
def test_a_targets_nan_logits_stop_with_the_reason(value, sampling):
    model = tiny_model("llama", V)
    loaded = wrap_model(model)
    calls = []

    def spoil(_module, _inputs, output):
        calls.append(1)
        if len(calls) > 2:
            output.logits.fill_(value)

    model.register_forward_hook(spoil)
    for drafter in (None, CountingDrafter(V)):
        calls.clear()
        decoder = Decoder(loaded, drafter, gamma=Gamma(2), sampling=sampling)
        with pytest.raises(NumericsError, match="no distribution"):
            decoder.generate(PROMPTS, SETTINGS)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "no prompt"),
        ([[]], "prompt 0 is empty"),
        ([[3], []], "prompt 1 is empty"),
        ([[3, V]], f"token id {V}"),
        (["text"], "no tokenizer"),
        ([[3] * 256], "takes 256"),
    ],
)
def test_bad_prompts_say_what_to_do(target, prompts, message):
    with pytest.raises(PromptError, match=message):
        Decoder(target).generate(prompts)


def test_a_drafter_needs_a_gamma(target):
    with pytest.raises(ConfigError, match="gamma"):
        Decoder(target, TableDrafter(V))


def test_stop_strings_need_a_tokenizer(target):
    with pytest.raises(ConfigError, match="no tokenizer"):
        Decoder(target).generate(PROMPTS, GenerationSettings(stop=("x",)))
