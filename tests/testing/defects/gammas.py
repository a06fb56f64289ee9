"""Gamma controllers with one thing wrong."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import cast

import torch

from specdec_core.interface import BatchInfo, GammaSession, StepReport
from tests.testing.defects.healthy import Following, FollowingSession, SizeConfig


class GrowsWithoutEnd(Following):
    """Asks for two more after every draft accepted whole, beyond its own `max_gamma`.

    Seen in additive rules without a ceiling; buffers are made for `max_gamma` tokens.
    """

    def open(self, batch: BatchInfo) -> GammaSession:
        return _GrowsWithoutEndSession(self, batch)


class _GrowsWithoutEndSession(FollowingSession):
    def observe(self, report: StepReport) -> None:
        rows = zip(self.gammas, report.outcome.drafted, report.outcome.accepted, strict=True)
        self.gammas = [gamma + 2 if accepted == drafted > 0 else 1 for gamma, drafted, accepted in rows]


class FallsBelowZero(Following):
    """Asks for one less after every step in which nothing was accepted, without a floor.

    Seen in additive rules, which take one away after each miss.
    """

    def open(self, batch: BatchInfo) -> GammaSession:
        return _FallsBelowZeroSession(self, batch)


class _FallsBelowZeroSession(FollowingSession):
    def observe(self, report: StepReport) -> None:
        rows = zip(self.gammas, report.outcome.accepted, strict=True)
        self.gammas = [min(gamma + 1, 4) if accepted else gamma - 1 for gamma, accepted in rows]


class ForgetsFinishedRows(Following):
    """Answers for the rows that go on, and not for all rows of the batch.

    Seen where servers take finished requests out of the batch.
    """

    def open(self, batch: BatchInfo) -> GammaSession:
        return _ForgetsFinishedRowsSession(self, batch)


class _ForgetsFinishedRowsSession(FollowingSession):
    def observe(self, report: StepReport) -> None:
        super().observe(report)
        self.gammas = [gamma for gamma, end in zip(self.gammas, report.outcome.finished, strict=True) if not end]


class OneRow(Following):
    """Answers for one row, whatever the batch.

    Seen in controllers of systems that decode one sequence.
    """

    def open(self, batch: BatchInfo) -> GammaSession:
        return _OneRowSession(self, batch)


class _OneRowSession(FollowingSession):
    def plan(self) -> Sequence[int]:
        return self.gammas[:1]


class HalfTokens(Following):
    """Asks for a running average of tokens, and does not round it."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _HalfTokensSession(self, batch)


class _HalfTokensSession(FollowingSession):
    def observe(self, report: StepReport) -> None:
        rows = zip(self.gammas, report.outcome.accepted, strict=True)
        self.gammas = cast(list[int], [0.5 * gamma + 0.5 * accepted for gamma, accepted in rows])


class TensorOfGammas(Following):
    """Answers with a tensor, as the arithmetic left it."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _TensorOfGammasSession(self, batch)


class _TensorOfGammasSession(FollowingSession):
    def plan(self) -> Sequence[int]:
        return cast(Sequence[int], torch.tensor(self.gammas))


class OneGammaForAllRows(Following):
    """All rows follow the first one.

    Seen in servers with one draft length for the whole batch.
    """

    def open(self, batch: BatchInfo) -> GammaSession:
        return _OneGammaForAllRowsSession(self, batch)


class _OneGammaForAllRowsSession(FollowingSession):
    def plan(self) -> Sequence[int]:
        return [min(self.gammas)] * len(self.gammas)


class OneStateForAllBatches(Following):
    """Keeps the rows' gammas on the controller, where every batch begins with those of another.

    Seen in the transformers library, whose `heuristic` schedule carries gamma from one call to the next.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gammas = [1] * 64

    def open(self, batch: BatchInfo) -> GammaSession:
        made = _SharedSession(self, batch)
        made.gammas = self.gammas[: batch.batch_size]
        return made


class _SharedSession(FollowingSession):
    controller: OneStateForAllBatches

    def observe(self, report: StepReport) -> None:
        self.gammas[:] = [min(accepted + 1, self.controller.max_gamma) for accepted in report.outcome.accepted]
        self.controller.gammas[: len(self.gammas)] = self.gammas


class RemembersTheFirstBatch(Following):
    """Answers for as many rows as its first batch had."""

    rows: int | None = None

    def open(self, batch: BatchInfo) -> GammaSession:
        self.rows = self.rows or batch.batch_size
        made = _RemembersTheFirstBatchSession(self, batch)
        made.gammas = [1] * self.rows
        return made


class _RemembersTheFirstBatchSession(FollowingSession):
    def observe(self, report: StepReport) -> None:
        return


class ReplacesItsSettings(Following):
    """Replaces its own config when it learns.

    Seen in the transformers library: `num_assistant_tokens` of the assistant's generation config.
    """

    def open(self, batch: BatchInfo) -> GammaSession:
        self.config = SizeConfig(max_gamma=max(self.config.max_gamma - 1, 1))
        return super().open(batch)


class LooksAtTheClock(Following):
    """Measures steps by a clock of its own, and not by the seconds of the reports."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _LooksAtTheClockSession(self, batch)


class _LooksAtTheClockSession(FollowingSession):
    def plan(self) -> Sequence[int]:
        now = time.perf_counter_ns() // 100
        return [1 + (now + row) % self.controller.max_gamma for row in range(self.batch.batch_size)]


class DrawsGlobally(Following):
    """Explores with Python's global random numbers, which have no seed."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _DrawsGloballySession(self, batch)


class _DrawsGloballySession(FollowingSession):
    def plan(self) -> Sequence[int]:
        return [random.randint(0, self.controller.max_gamma) for _ in range(self.batch.batch_size)]


class DividesByDrafted(Following):
    """Takes the share of the draft that was accepted, also where nothing was drafted.

    Seen wherever a rate is computed from a step near the end of a row.
    """

    def open(self, batch: BatchInfo) -> GammaSession:
        return _DividesByDraftedSession(self, batch)


class _DividesByDraftedSession(FollowingSession):
    def observe(self, report: StepReport) -> None:
        super().observe(report)
        rates = [
            accepted / drafted
            for accepted, drafted in zip(report.outcome.accepted, report.outcome.drafted, strict=True)
        ]
        self.gammas = [gamma if rate else 1 for gamma, rate in zip(self.gammas, rates, strict=True)]


class ExpectsABonus(Following):
    """Fails where a row has ended, to which nothing is committed any more."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _ExpectsABonusSession(self, batch)


class _ExpectsABonusSession(FollowingSession):
    def observe(self, report: StepReport) -> None:
        super().observe(report)
        if any(new[-1] < 0 for new in report.outcome.committed):
            raise ValueError("a token below 0 was committed")


class NeedsRoom(Following):
    """Spreads its tokens over the room of a row, and divides by zero where that is a single token."""

    def open(self, batch: BatchInfo) -> GammaSession:
        made = FollowingSession(self, batch)
        made.gammas = [1 + int(self.max_gamma > 8 / (room - 1)) for room in batch.room]
        return made


class MovingMaximum(Following):
    """`max_gamma` is what it would ask for now, so that buffers made at the beginning are too small later."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 1

    @property
    def max_gamma(self) -> int:
        return self.most

    def open(self, batch: BatchInfo) -> GammaSession:
        return _MovingMaximumSession(self, batch)


class _MovingMaximumSession(FollowingSession):
    controller: MovingMaximum

    def observe(self, report: StepReport) -> None:
        self.controller.most = max(self.controller.most, min(1 + max(report.outcome.accepted), 4))
        super().observe(report)


class LearnsByGradient(Following):
    """Fits a model of acceptance by gradient descent: within the step of the core, torch records no gradients."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _LearnsByGradientSession(self, batch)


class _LearnsByGradientSession(FollowingSession):
    def __init__(self, controller: Following, batch: BatchInfo) -> None:
        super().__init__(controller, batch)
        self.weight = torch.zeros(1, requires_grad=True)

    def observe(self, report: StepReport) -> None:
        super().observe(report)
        loss = (
            (torch.sigmoid(self.weight) - sum(report.outcome.accepted) / max(1, sum(report.verified))) ** 2
        ).sum()
        loss.backward()  # type: ignore[no-untyped-call]


class NeedsSampling(Following):
    """Fails for greedy decoding, where there is no confidence."""

    def open(self, batch: BatchInfo) -> GammaSession:
        if batch.greedy:
            raise NotImplementedError("confidence needs a temperature above 0")
        return super().open(batch)


class ReseedsTorch(Following):
    """Seeds torch's global generator for each batch, to be repeatable.

    Seen in a small peer that reseeds inside the acceptance loop.
    """

    def open(self, batch: BatchInfo) -> GammaSession:
        torch.manual_seed(0)
        return super().open(batch)


class AnswersNothing(Following):
    """Sets its gamma, and forgets to return it."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _AnswersNothingSession(self, batch)


class _AnswersNothingSession(FollowingSession):
    def plan(self) -> Sequence[int]:
        self.gammas = [1] * self.batch.batch_size
        return None  # type: ignore[return-value]


class CountsOnBeingAsked(Following):
    """Fails at a report of a step for which it was not asked, as happens once the drafter has failed."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return _CountsOnBeingAskedSession(self, batch)


class _CountsOnBeingAskedSession(FollowingSession):
    asked: Sequence[int] | None = None

    def plan(self) -> Sequence[int]:
        self.asked = list(self.gammas)
        return self.asked

    def observe(self, report: StepReport) -> None:
        asked, self.asked = self.asked, None
        assert asked is not None, "observe() before plan()"
        super().observe(report)


class KeepsItsBatches(Following):
    """Keeps the session of every batch, to learn from them all some day."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[GammaSession] = []

    def open(self, batch: BatchInfo) -> GammaSession:
        self.sessions.append(super().open(batch))
        return self.sessions[-1]
