"""Checks of controllers in the decoding loop, with a drafter of the kit: the samples, and their cost."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import sqrt
from typing import Any

from torch import Tensor

from specdec_core.decoding import Decoder
from specdec_core.interface import (
    BatchInfo,
    GammaController,
    LenienceController,
    LenienceSession,
    StepReport,
)
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.testing.causes import what_failed
from specdec_core.testing.checks.controller_answers import ControllerSubject, long_run, long_scenarios, wrong_form
from specdec_core.testing.controller_subject import LenienceSubject
from specdec_core.testing.harness.enumeration import adjusted, continuations, require_distribution, sampled
from specdec_core.testing.harness.tiny_target import PROMPT, TinyTarget, tiny_target, uncached_logits
from specdec_core.testing.harness.toys import Gamma, TableDrafter
from specdec_core.testing.registration import CheckFailure, check

PROMPTS = (PROMPT, (4,), (5, 5, 4, 3, 2, 0, 2, 3, 4, 4))
"""Prompts of different lengths, one of a single token."""
LENGTH = 4
"""Length of the continuations that are enumerated."""
GAMMAS = (3, 1, 2)
"""Gammas for lenience controllers."""
DEVIATIONS = 5.0
"""Standard deviations by which a count may exceed a bound by chance."""
ROUNDING = 1e-4
"""Relative difference between probabilities of two forward passes over the same tokens."""
SAMPLED, GREEDY = SamplingSettings(), SamplingSettings(temperature=0)


def decoder(
    subject: ControllerSubject,
    sampling: SamplingSettings,
    controller: GammaController | LenienceController | None = None,
) -> Decoder:
    """Return a strict decoder, by default with a new controller."""
    target = subject.target
    controller = controller or subject.fresh()
    return Decoder(
        target.loaded,
        TableDrafter(target.info.vocab_size),
        gamma=controller if isinstance(controller, GammaController) else Gamma(*GAMMAS),
        lenience=controller if isinstance(controller, LenienceController) else None,
        sampling=sampling,
        strict=True,
    )


@functools.cache
def exact(device: str) -> dict[tuple[int, ...], float]:
    """Return the probability of every continuation of `LENGTH` tokens."""
    return continuations(tiny_target(device=device).loaded, SAMPLED, length=LENGTH)


def _not_declared(subject: LenienceSubject) -> str | None:
    declared = any(subject.lossless_for(greedy=greedy) for greedy in (False, True))
    return None if declared else "its settings do not declare it lossless"


@check("lossless", kind="gamma", skip_if=wrong_form)
def lossless(subject: ControllerSubject) -> None:
    """Sampled output has the target's exact distribution (chi-square).

    Decoding at temperature 1 with it samples the target's exact distribution (chi-square).
    """
    loop = decoder(subject, SAMPLED)
    # Small batches show failures; the large one shows whether the distribution is right.
    least, most = subject.samples(750, 6000, 375, seconds=4.0)
    for batch, low, high in ((1, 12, 12), (3, 60, 60), (375, least, most)):
        where = f"after {list(PROMPT)}, {batch} at a time, at temperature 1"
        expected = exact(subject.device)
        require_distribution(loop, expected, where, batch=batch, min_count=low, max_count=high, seed=subject.seed)


@check("greedy-equals-baseline", kind="gamma", skip_if=wrong_form)
def greedy_equals_baseline(subject: ControllerSubject) -> None:
    """Greedy output equals the autoregressive baseline's.

    Greedy decoding with it gives the tokens of the autoregressive baseline, in no more target calls.
    """
    length = subject.times(40, 12, "tokens of each text")
    settings = GenerationSettings(max_new_tokens=length, ignore_eos=True)
    prompts = [list(prompt) for prompt in PROMPTS]
    for some in (prompts[:1], prompts):
        did = f"decoded {length} tokens greedily after each of {some}, with the controller and autoregressively"
        baseline = Decoder(subject.target.loaded, sampling=GREEDY).generate(some, settings)
        try:
            result = decoder(subject, GREEDY).generate(some, settings)
        except Exception as error:
            raise CheckFailure(did, what_failed(error), "no exception") from error
        for own, other in zip(result.sequences, baseline.sequences, strict=True):
            if own.tokens != other.tokens:
                raise CheckFailure(did, f"{list(own.tokens)}", f"the baseline's tokens: {list(other.tokens)}")
        calls, limit = result.metrics.target_calls, baseline.metrics.target_calls
        if calls > limit:
            raise CheckFailure(did, f"{calls} target calls", f"at most {limit}, as many as the baseline")


@check("lossless-as-declared", kind="lenience", skip_if=(_not_declared, wrong_form))
def lossless_as_declared(subject: LenienceSubject) -> None:
    """If declared lossless, l is 1 and output exact.

    Where its settings declare it lossless, l is always 1, and decoding samples the target's distribution.
    """
    steps = long_run(subject)
    for scenario in long_scenarios(subject):
        if not subject.lossless_for(greedy=scenario.greedy):
            continue
        batch = subject.simulate(scenario)
        for _ in range(steps):
            batch.step()
            answer = batch.leniences[-1]
            if answer is not None and any(value != 1 for row in answer for value in row):
                expected = f"l = 1 for every row and position: `lossless_for(greedy={scenario.greedy})` is True"
                raise batch.failure(f"l = {answer}", expected)
    if subject.lossless_for(greedy=False):
        lossless(subject)


@check("probability-bound", kind="lenience", skip_if=wrong_form, slow=True)
def probability_bound(subject: LenienceSubject) -> None:
    """No first token is more probable than p(x) / l.

    At temperature 1, no first token x is more probable than p(x) / l (appendix A.5 of the paper).

    l is what the controller answers for the first draft of such a batch if it is asked before anything is drafted.
    A controller that looks at the draft it verifies is more lenient than that.
    """
    count, _ = subject.samples(2000, 2000, 2000, seconds=4.0)
    info = BatchInfo(count, Gamma(*GAMMAS).max_gamma, (LENGTH,) * count, greedy=False)
    leniences = [_at(row, 0) for row in subject.fresh().open(info).lenience()]
    did = (
        f"asked for l of a first draft ({min(leniences):g} to {max(leniences):g}), and decoded {count} "
        f"continuations of {list(PROMPT)} at temperature 1"
    )
    try:
        seen = sampled(decoder(subject, SAMPLED), count, count, length=LENGTH, seed=subject.seed)
    except Exception as error:
        raise CheckFailure(did, what_failed(error), "no exception") from error
    for token, p in enumerate(_p(subject.target, PROMPT).tolist()):
        bounds = [min(1.0, p / lenience) for lenience in leniences]
        allowed, deviation = sum(bounds), sqrt(sum(bound * (1 - bound) for bound in bounds))
        often = sum(number for continuation, number in seen.items() if continuation[0] == token)
        if often > allowed + DEVIATIONS * deviation:
            raise CheckFailure(
                did,
                f"token {token} came first {often} times",
                f"at most p({token}) / l = {p:.4g} / l: {allowed:.1f} times, and up to "
                f"{DEVIATIONS * deviation:.1f} more by chance",
                "l may depend on the reports of earlier steps, but not on the draft that it is used for.",
            )


@check("greedy-bound", kind="lenience", skip_if=wrong_form)
def greedy_bound(subject: LenienceSubject) -> None:
    """Greedy decoding accepts x only if p(x) >= l max p.

    Greedy decoding accepts a draft token x only if p(x) >= l max p, and asks for l once per verified draft.
    """
    recorder = _Recorder(subject.fresh())
    loop = decoder(subject, GREEDY, recorder)
    rows = [list(prompt) for prompt in PROMPTS]
    settings = GenerationSettings(max_new_tokens=24, ignore_eos=True)
    did = f"decoded {settings.max_new_tokens} tokens greedily after each of {rows}"
    try:
        for report in loop.stream(rows, settings):
            _require_greedy_bound(subject.target, did, rows, report, recorder.answers)
            recorder.answers.clear()
    except CheckFailure:
        raise
    except Exception as error:
        raise CheckFailure(did, what_failed(error), "no exception") from error


def _require_greedy_bound(
    target: TinyTarget, did: str, rows: Sequence[list[int]], report: StepReport, answers: Sequence[Any]
) -> None:
    """Check the tokens that a step committed to each row, and append them."""
    if len(answers) != int(any(report.outcome.drafted)):
        got = f"lenience() was called {len(answers)} times"
        raise CheckFailure(did, got, "one call in every step that verifies a draft, and none in other steps")
    for index, (row, new, accepted) in enumerate(
        zip(rows, report.outcome.committed, report.outcome.accepted, strict=True)
    ):
        for position, token in enumerate(new):
            p = _p(target, row)
            lenience = _at(answers[0][index], position) if position < accepted else 1.0
            if float(p[token]) < (lenience - ROUNDING) * float(p.max()):
                raise CheckFailure(
                    f"{did}; step {report.step}, with l = {lenience:g}, after {row}",
                    f"token {token} with p = {float(p[token]):.4g}",
                    f"p(x) >= l max p = {lenience * float(p.max()):.4g}",
                )
            row.append(token)


class _Recorder(LenienceController):
    """Forwards to a controller, and records its answers."""

    def __init__(self, inner: LenienceController) -> None:
        super().__init__(inner.config)
        self.inner = inner
        self.answers: list[Any] = []

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _RecorderSession(self.inner.open(batch), self.answers)


class _RecorderSession(LenienceSession):
    def __init__(self, inner: LenienceSession, answers: list[Any]) -> None:
        self.inner, self.answers = inner, answers

    def lenience(self) -> Sequence[float | Sequence[float]]:
        answer = self.inner.lenience()
        self.answers.append([list(row) if isinstance(row, Sequence) else row for row in answer])
        return answer

    def observe(self, report: StepReport) -> None:
        self.inner.observe(report)


def _at(row: float | Sequence[float], position: int) -> float:
    """Return l at a position. The last number of a row holds for all later positions."""
    return row[min(position, len(row) - 1)] if isinstance(row, Sequence) else row


def _p(target: TinyTarget, tokens: Sequence[int]) -> Tensor:
    """Return the target's distribution `[V]` float64 after some tokens."""
    return adjusted(uncached_logits(target.loaded, [tokens])[0, -1], SAMPLED)
