"""Drafters and controllers that answer nonsense.

Whatever they do, greedy decoding must return the target's own tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from specdec_core.decoding import Decoder
from specdec_core.interface import (
    BatchInfo,
    Drafter,
    DraftRequest,
    DraftSession,
    GammaController,
    GammaSession,
    LenienceController,
    LenienceSession,
    Outcome,
    PluginConfig,
    Proposal,
    SessionInfo,
    StepReport,
    TargetInfo,
)
from specdec_core.interface.tree import TreeShape
from specdec_core.models import LoadedModel, wrap_model
from tests.robustness.attack import BrokenError
from tests.tiny import tiny_model

VOCAB = 12
PROMPTS = ([2, 3, 4, 2, 3], [5], [7, 8, 9])
BATCH, GAMMA = len(PROMPTS), 4


@cache
def target() -> LoadedModel:
    """Return the model that all cases decode with."""
    return wrap_model(tiny_model("llama", VOCAB))


@cache
def expected() -> tuple[tuple[int, ...], ...]:
    """Return what the target generates without a plugin."""
    return tuple(one.tokens for one in Decoder(target(), temperature=0).generate(PROMPTS, **LENGTH))


LENGTH: Any = {"max_new_tokens": 12, "ignore_eos": True}


class OwnError(BaseException):
    """Not an `Exception`."""


ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: ValueError("plain"),
    lambda: ValueError("\x1b[31mred\x1b[0m \u202egnp"),
    lambda: ValueError("x" * 1_000_000),
    lambda: SystemExit(0),
    lambda: SystemExit("bye"),
    lambda: GeneratorExit(),
    lambda: StopIteration(),
    lambda: asyncio.CancelledError(),
    lambda: MemoryError(),
    lambda: RecursionError(),
    lambda: ExceptionGroup("several", [ValueError("one"), SystemError("two")]),
    lambda: OwnError("own"),
    lambda: UserWarning("a warning"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
)
ANSWERS: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: object(),
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: -1,
    lambda: [2.5] * len(PROMPTS),
    lambda: [10**30] * len(PROMPTS),
    lambda: [[]] * len(PROMPTS),
    lambda: [None] * len(PROMPTS),
    lambda: (n for n in range(3)),
    lambda: "three",
    lambda: {1, 2, 3},
    lambda: [True] * len(PROMPTS),
)


class Script:
    """A fault of a plugin: once, at one method."""

    def __init__(self, point: str, call: int, act: Callable[[Any], Any] | None) -> None:
        self.point, self.call, self.act = point, call, act
        self.done = False

    def at(self, point: str, given: Any, answer: Any) -> Any:
        """Return the right answer, or do what is wrong if this is the method and the call."""
        if point != self.point:
            return answer
        self.call -= 1
        if self.call >= 0 or self.act is None:
            return answer
        self.done = True
        return self.act(given)


class FaultyDrafter(Drafter):
    """Drafts the target's own tokens, some of them wrong, until its script says otherwise."""

    def __init__(self, script: Script) -> None:
        super().__init__(PluginConfig(), TargetInfo(vocab_size=VOCAB))
        self.script = script

    @property
    def hidden_layers(self) -> Sequence[int]:  # type: ignore[override]
        return self.script.at("drafter.hidden_layers", None, ())

    def open(self, session: SessionInfo) -> DraftSession:
        return self.script.at("drafter.open", session, _FaultySession(self.script))


class _FaultySession(DraftSession):
    def __init__(self, script: Script) -> None:
        self.script = script

    def propose(self, request: DraftRequest) -> Proposal:
        rows = [self._draft(row, tokens, n) for row, (tokens, n) in enumerate(_pairs(request))]
        return self.script.at("drafter.propose", request, Proposal.from_rows(rows))

    @staticmethod
    def _draft(row: int, tokens: Sequence[int], budget: int) -> list[int]:
        done = len(tokens) - len(PROMPTS[row])
        right = list(expected()[row][done : done + budget])
        return right[:1] + [token + (done % 2) for token in right[1:] if token + 1 < VOCAB]

    def commit(self, outcome: Outcome) -> None:
        return self.script.at("drafter.commit", outcome, None)

    def rollback(self, lengths: Sequence[int]) -> None:
        return self.script.at("drafter.rollback", lengths, None)

    def close(self) -> None:
        return self.script.at("drafter.close", None, None)


def _pairs(request: DraftRequest) -> list[tuple[Sequence[int], int]]:
    return list(zip(request.tokens, request.budget, strict=True))


class FaultyGamma(GammaController):
    """Four tokens, or a tree, until its script says otherwise."""

    def __init__(self, script: Script, shape: TreeShape | None = None) -> None:
        super().__init__(PluginConfig())
        self.script, self.shape = script, shape

    @property
    def max_gamma(self) -> int:
        return self.script.at("gamma.max_gamma", None, GAMMA)

    def open(self, batch: BatchInfo) -> GammaSession:
        return self.script.at("gamma.open", batch, _FaultyGammaSession(self.script, self.shape))


class _FaultyGammaSession(GammaSession):
    def __init__(self, script: Script, shape: TreeShape | None) -> None:
        self.script, self.shape = script, shape

    @property
    def uses_confidence(self) -> bool:  # type: ignore[override]
        return self.script.at("gamma.uses_confidence", None, True)

    def plan(self) -> Sequence[int] | TreeShape:
        return self.script.at("gamma.plan", None, self.shape or [GAMMA] * BATCH)

    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        return self.script.at("gamma.keep_drafting", confidence, [True] * len(confidence))

    def observe(self, report: StepReport) -> None:
        return self.script.at("gamma.observe", report, None)


class FaultyLenience(LenienceController):
    """The same l everywhere, until its script says otherwise."""

    def __init__(self, script: Script, value: float = 1.0) -> None:
        super().__init__(PluginConfig())
        self.script, self.value = script, value

    def open(self, batch: BatchInfo) -> LenienceSession:
        return self.script.at("lenience.open", batch, _FaultyLenienceSession(self.script, self.value))


class _FaultyLenienceSession(LenienceSession):
    def __init__(self, script: Script, value: float) -> None:
        self.script, self.value = script, value

    def lenience(self) -> Sequence[float]:
        return self.script.at("lenience.lenience", None, [self.value] * BATCH)

    def observe(self, report: StepReport) -> None:
        return self.script.at("lenience.observe", report, None)


ANSWERED = ("drafter.open", "drafter.propose", "gamma.max_gamma", "gamma.open", "lenience.open")


def answering(random: Random, _: Path) -> Iterator[str]:
    """A plugin answers with something that is no answer."""
    point, call, number = random.choice(ANSWERED), random.randrange(3), random.randrange(len(ANSWERS))
    answer = ANSWERS[number]()
    yield f"{point} returns {answer!r:.40} at call {call + 1}"
    decode(Script(point, call, lambda _: answer))


def decode(script: Script, *, temperature: float = 0) -> None:
    """Decode with plugins that follow a script.

    Args:
        script: What they do wrong.
        temperature: Only what is decoded at temperature 0 can be compared.

    Raises:
        BrokenError: The tokens are not the target's own.
    """
    lenience = FaultyLenience(script) if script.point.startswith("lenience") else None
    decoder = Decoder(
        target(), FaultyDrafter(script), gamma=FaultyGamma(script), lenience=lenience, temperature=temperature
    )
    result = decoder.generate(PROMPTS, **LENGTH)
    if not temperature and tuple(one.tokens for one in result) != expected():
        raise BrokenError("wrong tokens")
    json.dumps([asdict(result.metrics), [one.tokens for one in result], [str(one) for one in result.failures]])
