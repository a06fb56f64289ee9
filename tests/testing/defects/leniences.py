"""Lenience controllers with one thing wrong."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import cast

import torch

from specdec_core.interface import BatchInfo, LenienceSession, StepReport
from tests.testing.defects.healthy import Lenient, LenientSession, LosslessConfig, StrictSession


class FallsToZero(Lenient):
    """l falls with every rejection down to 0, where every draft would be accepted."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _FallsToZeroSession(self, batch)


class _FallsToZeroSession(LenientSession):
    def learn(self, row: int, report: StepReport) -> None:
        if report.verified[row] > report.outcome.accepted[row]:
            self.values[row] = max(self.values[row] - 0.25, 0.0)


class AboveOne(Lenient):
    """l rises above 1 after accepted drafts."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _AboveOneSession(self, batch)


class _AboveOneSession(LenientSession):
    def learn(self, row: int, report: StepReport) -> None:
        self.values[row] *= 1.2 if report.outcome.accepted[row] else 0.9


class NotANumber(Lenient):
    """l is the accepted share of the verified tokens, and some steps verify none."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _NotANumberSession(self, batch)


class _NotANumberSession(LenientSession):
    def learn(self, row: int, report: StepReport) -> None:
        share = torch.tensor(float(report.outcome.accepted[row])) / report.verified[row]
        self.values[row] = float(share.clamp(0.3, 1.0))


class OneRow(Lenient):
    """Answers with one number for the whole batch."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _OneRowSession(self, batch)


class _OneRowSession(LenientSession):
    def lenience(self) -> Sequence[float | Sequence[float]]:
        return self.values[:1]


class NoPositions(Lenient):
    """Answers with the rest of a schedule, which is empty at the end."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _NoPositionsSession(self, batch)


class _NoPositionsSession(LenientSession):
    def __init__(self, controller: Lenient, batch: BatchInfo) -> None:
        super().__init__(controller, batch)
        self.written = [0] * batch.batch_size

    def lenience(self) -> Sequence[float | Sequence[float]]:
        schedule = [1.0, 0.9, 0.8, 0.7, 0.6]
        return [schedule[written:] for written in self.written]

    def learn(self, row: int, report: StepReport) -> None:
        self.written[row] += len(report.outcome.committed[row])


class TensorOfPositions(Lenient):
    """Answers with a tensor `[B, K]`, as the arithmetic left it."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _TensorOfPositionsSession(self, batch)


class _TensorOfPositionsSession(LenientSession):
    def lenience(self) -> Sequence[float | Sequence[float]]:
        return cast(Sequence[float], torch.tensor(self.values)[:, None].expand(-1, 2))


class SaysLossless(Lenient):
    """Its settings promise that l is 1 whatever happens, and it is not after a refusal."""

    def __init__(self) -> None:
        super().__init__(LosslessConfig())


class LosslessForAWhile(Lenient):
    """Its settings promise that l is 1 whatever happens, and it is not in a long text."""

    def __init__(self) -> None:
        super().__init__(LosslessConfig())

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _LosslessForAWhileSession(self, batch)


class _LosslessForAWhileSession(LenientSession):
    def learn(self, row: int, report: StepReport) -> None:
        self.values[row] = 1.0 if report.step < 100 else 0.4


class OneStateForAllRows(Lenient):
    """A rejection in one row makes all rows lenient."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _OneStateForAllRowsSession(self, batch)


class _OneStateForAllRowsSession(LenientSession):
    def lenience(self) -> Sequence[float | Sequence[float]]:
        return [min(self.values)] * len(self.values)


class OneStateForAllBatches(Lenient):
    """A batch begins as leniently as another one ended."""

    def __init__(self) -> None:
        super().__init__()
        self.values = [1.0] * 64

    def open(self, batch: BatchInfo) -> LenienceSession:
        made = LenientSession(self, batch)
        made.values = self.values
        return _Cut(made, batch.batch_size)


class _Cut(LenienceSession):
    def __init__(self, inner: LenientSession, rows: int) -> None:
        self.inner, self.rows = inner, rows

    def lenience(self) -> Sequence[float | Sequence[float]]:
        return self.inner.values[: self.rows]

    def observe(self, report: StepReport) -> None:
        self.inner.observe(report)


class FailsAtASkippedStep(Lenient):
    """Expects to be asked before every report, but is not asked in steps without a draft."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _FailsAtASkippedStepSession(self, batch)


class _FailsAtASkippedStepSession(LenientSession):
    answered: list[float] | None = None

    def lenience(self) -> Sequence[float | Sequence[float]]:
        self.answered = list(self.values)
        return self.answered

    def observe(self, report: StepReport) -> None:
        answered, self.answered = self.answered, None
        assert answered is not None, "observe() before lenience()"
        super().observe(report)


class LooksAtTheClock(Lenient):
    """Becomes lenient when a deadline by its own clock is near."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _LooksAtTheClockSession(self, batch)


class _LooksAtTheClockSession(LenientSession):
    def lenience(self) -> Sequence[float | Sequence[float]]:
        return [0.5 + 0.5 * (time.perf_counter_ns() // 100 % 100) / 100] * self.batch.batch_size


class DrawsGlobally(Lenient):
    """Draws l by Python's global random numbers."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _DrawsGloballySession(self, batch)


class _DrawsGloballySession(LenientSession):
    def lenience(self) -> Sequence[float | Sequence[float]]:
        return [1 - random.random() / 2 for _ in self.values]


class ReplacesItsSettings(Lenient):
    """Declares itself lossless from its second batch on."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        made = super().open(batch)
        self.config = LosslessConfig()
        return made


class NeedsSampling(Lenient):
    """Fails for greedy decoding."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        if batch.greedy:
            raise NotImplementedError("typical acceptance needs a temperature above 0")
        return super().open(batch)


class LearnsByGradient(Lenient):
    """Fits its threshold by gradient descent: within the step of the core, torch records no gradients."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _LearnsByGradientSession(self, batch)


class _LearnsByGradientSession(LenientSession):
    def __init__(self, controller: Lenient, batch: BatchInfo) -> None:
        super().__init__(controller, batch)
        self.weight = torch.zeros(1, requires_grad=True)

    def observe(self, report: StepReport) -> None:
        super().observe(report)
        loss = ((torch.sigmoid(self.weight) - sum(report.deviation)) ** 2).sum()
        loss.backward()  # type: ignore[no-untyped-call]


class ReseedsTorch(Lenient):
    """Seeds torch's global generator for each batch, to be repeatable."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        torch.manual_seed(0)
        return super().open(batch)


class ExpectsEveryRow(Lenient):
    """Looks at the last committed token of every row, of which a row that has ended has none."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return _ExpectsEveryRowSession(self, batch)


class _ExpectsEveryRowSession(LenientSession):
    def learn(self, row: int, report: StepReport) -> None:
        super().learn(row, report)
        self.last = report.outcome.committed[row][-1]


class RemembersTheFirstBatch(Lenient):
    """Answers for as many rows as its first batch had."""

    rows: int | None = None

    def open(self, batch: BatchInfo) -> LenienceSession:
        self.rows = self.rows or batch.batch_size
        made = StrictSession(self, batch)
        made.values = [0.8] * self.rows
        return made


class KeepsItsBatches(Lenient):
    """Keeps the session of the last batch, to go on where that ended."""

    last: LenienceSession | None = None

    def open(self, batch: BatchInfo) -> LenienceSession:
        self.last = super().open(batch)
        return self.last
