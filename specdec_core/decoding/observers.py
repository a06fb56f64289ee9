"""Observers: they are told what happens and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specdec_core.border import SessionInfo, StepReport
from specdec_core.decoding.result import BatchResult


class Observer:
    """Base of observers: override what you want to know of."""

    def on_start(self, session: SessionInfo, prompts: Sequence[Sequence[int]]) -> None:
        """Learn that a batch begins, with the token ids of its prompts."""

    def on_step(self, report: StepReport) -> None:
        """Learn what became of a step."""

    def on_end(self, result: BatchResult) -> None:
        """Learn the result of the batch."""


class TraceObserver(Observer):
    """Keeps every step's report, for tables and for coloured traces such as Figure 1."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def on_step(self, report: StepReport) -> None:
        """Keep the report."""
        self.reports.append(report)


class ProgressObserver(Observer):
    """Calls back with the number of new tokens after every step.

    Args:
        advance: Called with the tokens that the step committed in all rows.
    """

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance

    def on_step(self, report: StepReport) -> None:
        """Pass on how many tokens came."""
        self._advance(sum(len(row) for row in report.committed))
