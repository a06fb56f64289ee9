"""Rows without models: steps in which each draft token is accepted with a given probability."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec_core.interface import BatchInfo, GammaController, GammaSession, Outcome, StepReport


def batch_info(controller: GammaController, rows: int = 1) -> BatchInfo:
    """A batch with room for a long text."""
    return BatchInfo(rows, controller.max_gamma, (10_000,) * rows, greedy=False)


def report(
    drafted: Sequence[int],
    accepted: Sequence[int],
    *,
    step: int = 1,
    ended: Sequence[bool] = (),
    draft_seconds: float = 0.05,
    verify_seconds: float = 1.0,
    deviation: Sequence[float] = (),
) -> StepReport:
    """What is told of a step in which so many tokens were drafted and accepted; rows that had ended got
    nothing."""
    ended = ended or (False,) * len(drafted)
    committed = [() if over else (1,) * (n + 1) for n, over in zip(accepted, ended, strict=True)]
    return StepReport(
        step=step,
        asked=tuple(drafted),
        outcome=Outcome(
            drafted=tuple(drafted),
            accepted=tuple(accepted),
            committed=tuple(committed),
            finished=tuple(ended),
        ),
        draft_tokens=tuple((1,) * n for n in drafted),
        draft_seconds=draft_seconds,
        verify_seconds=verify_seconds,
        step_seconds=draft_seconds + verify_seconds,
        deviation=tuple(deviation) or (0.0,) * len(drafted),
    )


@dataclass
class Scenario:
    """How a row was decoded.

    Attributes:
        asked: The gamma of each step.
        drafted: The length of each draft.
        accepted: How much of each was accepted.
    """

    asked: list[int]
    drafted: list[int]
    accepted: list[int]

    def tokens_per_time(self, c: float) -> float:
        """Tokens in the time of a plain target call, where a draft token takes c of it."""
        return (sum(self.accepted) + len(self.accepted)) / (len(self.drafted) + c * sum(self.drafted))


def decode(
    session: GammaSession,
    steps: int,
    accepts: Callable[[float], float],
    *,
    confidence: Callable[[random.Random], float] = lambda _: 1.0,
    seed: int = 0,
) -> Scenario:
    """Decode one row, in which a token of confidence q is accepted with probability `accepts(q)`."""
    chance = random.Random(seed)
    course = Scenario([], [], [])
    for step in range(steps):
        (gamma,) = session.plan()
        drafted, accepted, stands = 0, 0, True
        while drafted < gamma:
            q = confidence(chance)
            drafted += 1
            stands = stands and chance.random() < accepts(q)
            accepted += stands
            if session.uses_confidence and not session.keep_drafting([q])[0]:
                break
        session.observe(report((drafted,), (accepted,), step=step))
        course.asked.append(gamma)
        course.drafted.append(drafted)
        course.accepted.append(accepted)
    return course
