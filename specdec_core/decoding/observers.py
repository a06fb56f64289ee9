"""Observers: called while a batch is decoded; they change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from specdec_core.decoding.request_metrics import RequestMetrics
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


class RequestObserver(Observer):
    """Keeps the history of each sequence.

    Args:
        rows: Number of sequences.
        started: When the call began, of `perf_counter`.

    Attributes:
        rows: The history of each.
    """

    def __init__(self, rows: int, started: float) -> None:
        self.rows = [RequestHistory() for _ in range(rows)]
        self._started = started
        self._longest = 0

    def on_start(self, session: SessionInfo, prompts: Sequence[Sequence[int]]) -> None:  # noqa: ARG002
        """Keep the longest draft that may be asked for."""
        self._longest = session.max_gamma

    def on_step(self, report: StepReport) -> None:
        """Add a step to the sequences that were decoded in it."""
        seconds = perf_counter() - self._started
        drafts = zip(report.outcome.drafted, report.outcome.accepted, report.verified, strict=True)
        for row, origins, draft in zip(self.rows, report.origins, drafts, strict=True):
            if origins:
                row.add(origins, *draft)
                row.seconds = seconds

    @property
    def metrics(self) -> tuple[RequestMetrics, ...]:
        """The counts of each sequence."""
        return tuple(
            RequestMetrics(
                self._longest,
                row.steps,
                tuple(row.drafted),
                tuple(row.accepted),
                row.rejected,
                tuple(row.begins),
            )
            for row in self.rows
        )


@dataclass(slots=True)
class RequestHistory:
    """The steps of one sequence.

    Attributes:
        origins: Where each of its tokens comes from.
        steps: Number of its steps.
        drafted: Draft tokens of each step with a draft.
        accepted: Accepted draft tokens of the same steps.
        rejected: Drafts cut short by a rejection.
        begins: The index of the first token of each step with a draft.
        seconds: From the start of its batch to its last token.
    """

    origins: list[TokenOrigin] = field(default_factory=list)
    steps: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    rejected: int = 0
    begins: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, origins: Sequence[TokenOrigin], drafted: int, accepted: int, verified: int) -> None:
        """Add a step."""
        if drafted:
            self.begins.append(len(self.origins))
            self.drafted.append(drafted)
            self.accepted.append(accepted)
            self.rejected += verified > accepted
        self.origins += origins
        self.steps += 1
