"""A faulty plugin costs speed but never a token, or raises under `strict`. Errors about prompts say what to do."""

import re
import warnings
from pathlib import Path

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import (
    ConfigError,
    Dense,
    Drafter,
    DraftSession,
    PluginConfig,
    PluginError,
    PointMass,
    Proposal,
    SessionInfo,
    TargetInfo,
    TokenTree,
)
from specdec_core.interface.errors import NumericsError, PluginWarning, PromptError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import wrap_model
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, Gamma, Lenience, TableDrafter

V = 40
PROMPTS = ([3, 4, 5], [7, 8])
SETTINGS = GenerationSettings(max_new_tokens=10, ignore_eos=True)
GREEDY = SamplingSettings(temperature=0)
# What fails here warns; some tests below look at that.
pytestmark = pytest.mark.filterwarnings("ignore::specdec_core.PluginWarning")
BUG = "the drafter's own bug"


@pytest.fixture(scope="module")
def target():
    return wrap_model(tiny_model("llama", V))


class Scripted(Drafter):
    """Drafts twice without a fault, then calls the script."""

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

    def rollback(self, lengths):
        pass

    def close(self):
        self.drafter.closed += 1


def boom(_):
    raise RuntimeError(BUG)


def tokens(request, fill=5):
    return torch.full((len(request.budget), max(request.budget)), fill)


def dense(request, change):
    q = torch.full((len(request.budget), max(request.budget), V), 1 / V)
    change(q)
    return Proposal(tokens(request), request.budget, Dense(q))


FAULTS = {
    "raises": (boom, "RuntimeError: the drafter's own bug"),
    "too many tokens": (lambda r: Proposal.from_rows([[5] * (n + 1) for n in r.budget]), "its budget was"),
    "wrong batch": (lambda r: Proposal.from_rows([[5]]), "shape"),
    "float tokens": (lambda r: Proposal(tokens(r).float(), r.budget, PointMass()), "int64"),
    "id too large": (lambda r: Proposal(tokens(r, V), r.budget, PointMass()), "outside the vocabulary"),
    "q does not sum to 1": (lambda r: dense(r, lambda q: q.mul_(0.9)), "sum to 1"),
    "q is NaN": (lambda r: dense(r, lambda q: q.fill_(float("nan"))), "NaN"),
    "q gives its own token 0": (
        lambda r: dense(r, lambda q: q[..., 5:7].copy_(torch.tensor([0, 2 / V]))),
        "gives 0",
    ),
    "q of another width": (
        lambda r: Proposal(tokens(r), r.budget, Dense(torch.ones(2, max(r.budget), 3) / 3)),
        "dense q",
    ),
    "a later parent": (
        lambda r: Proposal(tokens(r), r.budget, PointMass(), torch.full_like(tokens(r), 2)),
        "a draft token's parent does not come before it",
    ),
    "logits of another width": (lambda r: r.sample(torch.zeros(2, 3)), "[B, V]"),
    "NaN logits": (lambda r: (r.sample(torch.full((2, V), float("nan"))), r.proposal())[1], "NaN"),
    "claims more than it drew": (
        lambda r: (r.sample(torch.zeros(2, V)), r.proposal().shortened((2, 1)))[1],
        "claims 2 tokens, but tokens has only 1",
    ),
    "draws past its budget": (lambda r: [r.sample(torch.zeros(2, V)) for _ in range(9)], "budget is spent"),
}


def decode(target, drafter, *, strict=False, sampling=GREEDY, gamma=None, lenience=None):
    decoder = Decoder(
        target, drafter, gamma=gamma or Gamma(3), lenience=lenience, sampling=sampling, strict=strict
    )
    return decoder.generate(PROMPTS, SETTINGS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_drafter_is_switched_off_and_loses_no_token(target, fault):
    script, message = FAULTS[fault]
    drafter = Scripted(script)
    # NaN logits show only where q is recorded, so this fault drafts with a temperature.
    sampling = SamplingSettings() if fault == "NaN logits" else GREEDY
    result = decode(target, drafter, sampling=sampling)
    assert [len(row.tokens) for row in result.sequences] == [10, 10]
    if sampling is GREEDY:
        plain = Decoder(target, sampling=GREEDY).generate(PROMPTS, SETTINGS)
        assert [row.tokens for row in result.sequences] == [row.tokens for row in plain.sequences]
    (failure,) = result.failures
    assert failure.plugin == "Scripted"
    assert failure.step == 2
    assert failure.times == 3, "in a row, and the drafter is not asked again"
    assert message in failure.message
    assert result.metrics.target_calls <= 10
    assert drafter.closed == 1


def test_a_failure_costs_one_step_if_the_drafter_can_go_on(target):
    asked = []

    def flaky(request):
        asked.append(len(asked) % 3)
        return boom(request) if asked[-1] else Proposal.from_rows([[5] * n for n in request.budget])

    result = decode(target, Scripted(flaky))
    plain = Decoder(target, sampling=GREEDY).generate(PROMPTS, SETTINGS)
    assert [row.tokens for row in result.sequences] == [row.tokens for row in plain.sequences]
    assert result.failures[0].times == sum(map(bool, asked)) > 3
    assert result.metrics.target_calls - 3 == len(asked), "it is asked in every step but the last"


@pytest.mark.parametrize("fault", ["raises", "wrong batch", "id too large"])
def test_strict_raises_with_the_plugins_name(target, fault):
    script, message = FAULTS[fault]
    with pytest.raises(PluginError, match=f"Scripted failed at step 2.*{message}"):
        decode(target, Scripted(script), strict=True)


def test_tokens_and_q_beyond_a_drafts_length_are_ignored(target):
    def ragged(request):
        lengths = (request.budget[0], 0)
        q = torch.full((2, max(request.budget), V), 1 / V)
        q[1] = float("nan")
        return Proposal(torch.where(torch.tensor([[True], [False]]), tokens(request), 10**6), lengths, Dense(q))

    result = decode(target, Scripted(ragged), strict=True, sampling=SamplingSettings())
    assert [len(row.tokens) for row in result.sequences] == [10, 10]


@pytest.mark.parametrize("when", ["open", "commit"])
def test_a_drafter_may_fail_at_any_call(target, when):
    result = decode(target, Scripted(boom, when))
    assert [len(row.tokens) for row in result.sequences] == [10, 10]
    assert [failure.times for failure in result.failures] == [1]


def _line(text):
    return Path(__file__).read_text().splitlines().index(text) + 1


def warned(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PluginWarning)
        action()
    return caught


def test_a_plugin_that_fails_warns_at_the_line_that_asked_for_text(target):
    decoder = Decoder(target, Scripted(boom), gamma=3, temperature=0)
    (warning,) = warned(lambda: decoder.generate(PROMPTS, SETTINGS))  # this line
    assert warning.category is PluginWarning
    line = _line("    raise RuntimeError(BUG)")
    said = (
        f"Scripted failed at step .* \\(tests/decoding/test_faults.py:{line}\\): RuntimeError: {BUG}\nNo token is"
    )
    assert re.match(said, str(warning.message))
    asked = _line("    (warning,) = warned(lambda: decoder.generate(PROMPTS, SETTINGS))  # this line")
    assert (warning.filename, warning.lineno) == (__file__, asked)


def test_a_plugin_warns_once_a_call_however_often_it_fails(target):
    def script(step):
        return [100, 0] if step % 2 else 1 // 0

    decoder = Decoder(target, CountingDrafter(V), gamma=Unsteady(script), lenience=Lenience(0.5), temperature=0)
    results = []
    assert len(warned(lambda: results.append(decoder.generate(PROMPTS, SETTINGS)))) == 1
    assert sum(failure.times for failure in results[0].failures) > 2
    assert len(warned(lambda: results.append(decoder.generate(PROMPTS, SETTINGS)))) == 1


def test_greedy_drafts_from_nan_logits_are_still_verified(target):
    # The argmax of NaN is some token. It is accepted only if it is the target's own.
    nan = lambda r: (r.sample(torch.full((2, V), float("nan"))), r.proposal())[1]  # noqa: E731
    result = decode(target, Scripted(nan))
    plain = Decoder(target, sampling=GREEDY).generate(PROMPTS, SETTINGS)
    assert [row.tokens for row in result.sequences] == [row.tokens for row in plain.sequences]


class Unsteady(Gamma):
    """Returns the next gamma of a script in every step, valid or not."""

    def __init__(self, script, most=3):
        super().__init__(most)
        self.script = script

    def open(self, batch):
        session = super().open(batch)
        steps = iter(range(100))
        session.plan = lambda: self.script(next(steps))
        return session


@pytest.mark.parametrize("bad", [[2, 4], [-1, 2], [2], [2, 1.5], None])
def test_a_gamma_out_of_range_affects_that_step_only(target, bad):
    script = lambda step: bad if step in (1, 3) else [1 + step % 3, 0]  # noqa: E731
    decoder = Decoder(target, CountingDrafter(V), gamma=Unsteady(script), sampling=GREEDY)
    result = decoder.generate(PROMPTS, SETTINGS, [trace := TraceObserver()])
    assert [report.asked[0] for report in trace.reports[:6]] == [1, 1, 3, 3, 2, 3]
    assert [(failure.plugin, failure.step, failure.times) for failure in result.failures] == [("Unsteady", 1, 2)]


class Boundless(Gamma):
    """Has no valid `max_gamma`."""

    def __init__(self, most):
        super().__init__(0)
        self.most = most

    @property
    def max_gamma(self):
        return self.most() if callable(self.most) else self.most

    def open(self, batch):
        return Gamma(0).open(batch)


@pytest.mark.parametrize("most", [lambda: 1 // 0, 2.5, -1], ids=["raises", "fraction", "negative"])
def test_without_a_valid_max_gamma_nothing_is_drafted(target, most):
    result = decode(target, CountingDrafter(V), gamma=Boundless(most))
    assert [len(row.tokens) for row in result.sequences] == [10, 10]
    assert result.metrics.drafted == 0
    (failure,) = result.failures
    assert (failure.plugin, failure.times) == ("Boundless", 1)
    with pytest.raises(PluginError, match="Boundless failed at step 0"):
        decode(target, CountingDrafter(V), gamma=Boundless(most), strict=True)


class Watcher(Gamma):
    """Answers `keep_drafting` from a script."""

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
        (lambda confidence: [False], "answered for 1 rows; the batch has 2. All sequences keep drafting"),
        (lambda confidence: [False] * 3, "answered for 3 rows"),
        (lambda confidence: None, "NoneType"),
    ],
)
def test_a_failing_keep_drafting_is_reported_for_the_controller_not_the_drafter(target, script, message):
    gamma = Watcher(script)
    result = decode(target, TableDrafter(V), gamma=gamma, sampling=SamplingSettings())
    (failure,) = result.failures
    assert failure.plugin == "Watcher"
    assert message in failure.message
    assert failure.step == 0
    # All sequences keep drafting, and it is asked again after every token.
    unwatched = decode(target, TableDrafter(V), sampling=SamplingSettings())
    assert [row.tokens for row in result.sequences] == [row.tokens for row in unwatched.sequences]
    assert failure.times > result.metrics.target_calls
    with pytest.raises(PluginError, match="Watcher failed at step 0"):
        decode(target, TableDrafter(V), gamma=gamma, sampling=SamplingSettings(), strict=True)


class ErraticLenience(Lenience):
    """Returns the next lenience of a script in every step, valid or not."""

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
    "NaN": [0.5, float("nan")],
    "one row": [0.5],
    "no position": [0.5, []],
    "nothing": None,
}


@pytest.mark.parametrize(
    ("bad", "sampling"), [("above 1", GREEDY), *((bad, SamplingSettings()) for bad in BAD_LENIENCES)]
)
def test_an_invalid_lenience_is_reported_once_and_the_last_valid_one_stays(target, bad, sampling):
    good = [[0.001, 0.5], 0.01]
    broken = ErraticLenience(lambda step: good if step < 2 else BAD_LENIENCES[bad])
    result = decode(target, TableDrafter(V), lenience=broken, sampling=sampling)
    (failure,) = result.failures
    assert failure.plugin == "ErraticLenience"
    assert failure.step == 2
    assert failure.times == broken.asked - 2
    kept = decode(target, TableDrafter(V), lenience=ErraticLenience(lambda step: good), sampling=sampling)
    assert not kept.failures
    assert [row.tokens for row in result.sequences] == [row.tokens for row in kept.sequences]
    assert result.metrics.deviation == kept.metrics.deviation > 0
    with pytest.raises(PluginError, match="ErraticLenience failed at step 2"):
        decode(target, TableDrafter(V), lenience=broken, sampling=sampling, strict=True)


@pytest.mark.parametrize("script", [boom, lambda step: [0.5, 2]], ids=["raises", "out of range"])
def test_a_lenience_that_was_never_valid_counts_as_1(target, script):
    broken = ErraticLenience(script)
    result = decode(target, TableDrafter(V), lenience=broken, sampling=SamplingSettings())
    strict = decode(target, TableDrafter(V), sampling=SamplingSettings())
    assert [row.tokens for row in result.sequences] == [row.tokens for row in strict.sequences]
    assert result.metrics.deviation == 0
    (failure,) = result.failures
    assert (failure.step, failure.times) == (0, broken.asked)
    # Asked for drafts alone: at the end there is room for the target's token only.
    assert 0 < broken.asked < result.metrics.target_calls


def test_a_controller_whose_observe_fails_is_still_asked(target):
    deaf = ErraticLenience(lambda step: [0.5, [1.0, 0.5]], observe=boom)
    result = decode(target, TableDrafter(V), lenience=deaf, sampling=SamplingSettings())
    (failure,) = result.failures
    assert failure.times == result.metrics.target_calls
    assert result.metrics.deviation > 0


def test_a_tree_that_is_larger_than_max_gamma_is_the_controllers_failure(target):
    script = lambda step: TokenTree((-1, -1, 0, 0)) if step == 1 else [2, 2]  # noqa: E731
    result = decode(target, CountingDrafter(V), gamma=Unsteady(script))
    plain = decode(target, CountingDrafter(V), gamma=Gamma(2))
    assert [row.tokens for row in result] == [row.tokens for row in plain]
    (failure,) = result.failures
    assert failure.message == "a tree of 4 nodes was asked for; max_gamma is 3."


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingSettings()])
def test_nan_logits_of_the_target_raise(value, sampling):
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
        decoder = Decoder(loaded, drafter, gamma=drafter and Gamma(2), sampling=sampling)
        with pytest.raises(NumericsError, match="not a distribution"):
            decoder.generate(PROMPTS, SETTINGS)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "no prompt"),
        ([[3], []], "prompt 1 is empty"),
        ([[3, V]], f"token id {V}"),
        (["text"], "no tokenizer"),
        ([[3] * 256], "takes 256"),
    ],
)
def test_bad_prompts_say_what_to_do(target, prompts, message):
    with pytest.raises(PromptError, match=message):
        Decoder(target).generate(prompts)


def test_stop_strings_need_a_tokenizer(target):
    with pytest.raises(ConfigError, match="no tokenizer"):
        Decoder(target).generate(PROMPTS, GenerationSettings(stop=("x",)))
