"""Controllers in the decoding loop itself: what it samples and what it counts, with a drafter of the kit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import sqrt
from typing import Any, TypeAlias

from torch import Tensor

from specdec_core.border import (
    BatchInfo,
    GammaController,
    LenienceController,
    LenienceSession,
    StepReport,
)
from specdec_core.decoding import Decoder
from specdec_core.settings import GenerationSettings, SamplingSettings
from specdec_core.testing.checking import CheckFailure
from specdec_core.testing.controller_subject import GammaSubject, LenienceSubject
from specdec_core.testing.failing import told
from specdec_core.testing.instruments.enumeration import adjusted, continuations, sampled
from specdec_core.testing.instruments.parts import Gamma, TableDrafter
from specdec_core.testing.instruments.statistics import SUSPICIOUS, farthest, p_of_sequences
from specdec_core.testing.instruments.world import PROMPT, World, fresh_logits, world

ControllerSubject: TypeAlias = GammaSubject | LenienceSubject

PROMPTS = (PROMPT, (4,), (5, 5, 4, 3, 2, 0, 2, 3, 4, 4))
"""Prompts of unlike lengths, one of a single token."""
LENGTH = 4
"""Tokens of the continuations that are enumerated."""
GAMMAS = (3, 1, 2)
"""What rows draft where no gamma controller is judged."""
DEVIATIONS = 5.0
"""Standard deviations by which chance alone is not believed to exceed a bound."""
ROUNDING = 1e-4
"""How far probabilities of two forwards over the same tokens may be apart, in relation."""
SAMPLED, ARGMAX = SamplingSettings(), SamplingSettings(temperature=0)


def decoder(
    subject: ControllerSubject,
    sampling: SamplingSettings,
    controller: GammaController | LenienceController | None = None,
) -> Decoder:
    """Return a decoder with a new controller, that raises where the controller fails."""
    here = subject.world
    gamma: GammaController = Gamma(*GAMMAS)
    lenience: LenienceController | None = None
    given = controller or subject.fresh()
    if isinstance(given, GammaController):
        gamma = given
    else:
        lenience = given
    return Decoder(
        here.target,
        TableDrafter(here.info.vocab_size),
        gamma=gamma,
        lenience=lenience,
        sampling=sampling,
        strict=True,
    )


@functools.cache
def exact(device: str) -> dict[tuple[int, ...], float]:
    """Return the probability of every continuation of `LENGTH` tokens."""
    return continuations(world(device=device).target, SAMPLED, length=LENGTH)


def require_lossless(subject: ControllerSubject) -> None:
    """Decode many short texts, and compare with the exact distribution of them."""
    loop = decoder(subject, SAMPLED)
    for batch, count in ((1, 12), (3, 60), (250, 3000)):
        did = f"decoded {count} texts of {LENGTH} tokens after {list(PROMPT)}, {batch} at a time, at temperature 1"
        try:
            seen = sampled(loop, batch, count, length=LENGTH, seed=subject.seed)
        except Exception as error:
            raise CheckFailure(did, told(error), "no exception") from error
        expected = exact(subject.device)
        p = p_of_sequences(seen, expected)
        if p < SUSPICIOUS:
            text, often, wanted = farthest(seen, expected)
            raise CheckFailure(
                did,
                f"{often} texts that begin with {list(text)}, where {wanted:.1f} were to be expected; "
                f"chi-square gives p = {p:.2g}",
                f"the target's own distribution (p above {SUSPICIOUS:g})",
            )


def require_argmax(subject: ControllerSubject) -> None:
    """Decode by argmax, plainly and with the controller, and compare tokens and target calls."""
    settings = GenerationSettings(max_new_tokens=40, ignore_eos=True)
    prompts = [list(prompt) for prompt in PROMPTS]
    for some in (prompts[:1], prompts):
        did = f"decoded 40 tokens after each of {some} by argmax, with the controller and plainly"
        plain = Decoder(subject.world.target, sampling=ARGMAX).generate(some, settings)
        try:
            result = decoder(subject, ARGMAX).generate(some, settings)
        except Exception as error:
            raise CheckFailure(did, told(error), "no exception") from error
        for own, other in zip(result.rows, plain.rows, strict=True):
            if own.tokens != other.tokens:
                raise CheckFailure(
                    did, f"{list(own.tokens)}", f"the tokens of plain decoding: {list(other.tokens)}"
                )
        calls, most = result.metrics.target_calls, plain.metrics.target_calls
        if calls > most:
            raise CheckFailure(did, f"{calls} target calls", f"at most {most}, as many as plain decoding takes")


def require_bound(subject: LenienceSubject) -> None:
    """Decode many texts at temperature 1; no first token may come more often than p(x) / l allows (appendix A.5).

    l is what the controller answers for the first draft of such a batch when it is asked by hand, and so without
    any draft: what looks at the draft that it judges is lenient towards other tokens than it said.
    """
    count = 2000
    info = BatchInfo(count, Gamma(*GAMMAS).max_gamma, (LENGTH,) * count, argmax=False)
    asked = [_first(row) for row in subject.fresh().open(info).lenience()]
    did = (
        f"asked for l of a first draft ({min(asked):g} to {max(asked):g}), and decoded {count} texts after "
        f"{list(PROMPT)} at temperature 1"
    )
    try:
        seen = sampled(decoder(subject, SAMPLED), count, count, length=LENGTH, seed=subject.seed)
    except Exception as error:
        raise CheckFailure(did, told(error), "no exception") from error
    for token, chance in enumerate(_after(subject.world, PROMPT).tolist()):
        most = [min(1.0, chance / lenience) for lenience in asked]
        allowed, doubt = sum(most), sqrt(sum(share * (1 - share) for share in most))
        often = sum(number for text, number in seen.items() if text[0] == token)
        if often > allowed + DEVIATIONS * doubt:
            raise CheckFailure(
                did,
                f"token {token} came first {often} times",
                f"at most p({token}) / l = {chance:.4g} / l allows: {allowed:.1f} times, up to "
                f"{DEVIATIONS * doubt:.1f} more by chance",
                "l may depend on what earlier steps reported, and not on the draft that it judges.",
            )


def require_argmax_rule(subject: LenienceSubject) -> None:
    """Decode by argmax; each kept draft token x must have p(x) >= l max p, each other token must be the argmax."""
    recorder = _Recorder(subject.fresh())
    loop = decoder(subject, ARGMAX, recorder)
    rows = [list(prompt) for prompt in PROMPTS]
    settings = GenerationSettings(max_new_tokens=24, ignore_eos=True)
    did = f"decoded {settings.max_new_tokens} tokens after each of {rows} by argmax"
    try:
        for report in loop.stream(rows, settings):
            _judge_argmax(subject, did, rows, report, recorder.answers)
            recorder.answers.clear()
    except CheckFailure:
        raise
    except Exception as error:
        raise CheckFailure(did, told(error), "no exception") from error


def _judge_argmax(
    subject: LenienceSubject, did: str, rows: Sequence[list[int]], report: StepReport, answers: Sequence[Any]
) -> None:
    """Judge what a step committed to each row, and append it."""
    if len(answers) != int(any(report.drafted)):
        got = f"lenience() was asked {len(answers)} times"
        raise CheckFailure(did, got, "once in every step that judges a draft, and in no other")
    for index, (row, new, kept) in enumerate(zip(rows, report.committed, report.accepted, strict=True)):
        for place, token in enumerate(new):
            p = _after(subject.world, row)
            lenience = _place(answers[0][index], place) if place < kept else 1.0
            if float(p[token]) < (lenience - ROUNDING) * float(p.max()):
                raise CheckFailure(
                    f"{did}; step {report.step}, with l = {lenience:g}, after {row}",
                    f"token {token}, of p = {float(p[token]):.4g}",
                    f"p(x) >= l max p = {lenience * float(p.max()):.4g}",
                )
            row.append(token)


class _Recorder(LenienceController):
    """Passes everything on to a controller, and writes down its answers."""

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


def _first(row: float | Sequence[float]) -> float:
    return _place(row, 0)


def _place(row: float | Sequence[float], place: int) -> float:
    """Return l of a place: the last number of a row holds for all places behind it."""
    return row[min(place, len(row) - 1)] if isinstance(row, Sequence) else row


def _after(world: World, tokens: Sequence[int]) -> Tensor:
    """Return the target's distribution `[V]` float64 after some tokens."""
    return adjusted(fresh_logits(world.target, [tokens])[0, -1], SAMPLED)
