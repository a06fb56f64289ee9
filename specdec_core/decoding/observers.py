"""Observers: called while a batch is decoded; they change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specdec_core.decoding.result import BatchResult
from specdec_core.interface import SessionInfo, StepReport
from specdec_core.interface.outcome import TokenOrigin


class Observer:
    """Base of observers: override the methods you need."""

    def on_start(self, session: SessionInfo, prompts: Sequence[Sequence[int]]) -> None:
        """Called when a batch starts, with the token ids of its prompts."""

    def on_step(self, report: StepReport) -> None:
        """Called after every step."""

    def on_end(self, result: BatchResult) -> None:
        """Called at the end of the batch."""


class TraceObserver(Observer):
    """Keeps the report of every step, for tables and for coloured traces such as Figure 1."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def on_step(self, report: StepReport) -> None:
        """Keep the report."""
        self.reports.append(report)


class ProgressObserver(Observer):
    """Calls a function with the number of new tokens after every step.

    Args:
        advance: Called with the number of tokens that the step committed in all sequences.
    """

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance

    def on_step(self, report: StepReport) -> None:
        """Report the number of new tokens."""
        self._advance(sum(len(row) for row in report.outcome.committed))


class OriginObserver(Observer):
    """Keeps where each token comes from.

    Args:
        rows: Number of sequences.

    Attributes:
        rows: The origins of each sequence's tokens.
    """

    def __init__(self, rows: int) -> None:
        self.rows: list[list[TokenOrigin]] = [[] for _ in range(rows)]

    def on_step(self, report: StepReport) -> None:
        """Keep the origins of the step's tokens."""
        for row, new in zip(self.rows, report.origins, strict=True):
            row += new
