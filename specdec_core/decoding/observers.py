"""Observers, called while a batch is decoded, which change nothing, and the text of its steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

from specdec_core.decoding.result import BatchResult
from specdec_core.interface import SessionInfo, StepReport
from specdec_core.interface.errors import ArgumentError
from specdec_core.interface.outcome import Verification
from specdec_core.trace.figure import speller, trace_html

R = TypeVar("R")


class Observer:
    """Base of observers: override the methods you need.

    Attributes:
        probabilities: Whether each report has its `StepReport.verification`, which costs time.
    """

    probabilities: bool = False

    def on_start(self, session: SessionInfo, prompts: Sequence[Sequence[int]]) -> None:
        """Called when a batch starts, with the token ids of its prompts."""

    def on_step(self, report: StepReport) -> None:
        """Called after every step."""

    def on_end(self, result: BatchResult) -> None:
        """Called at the end of the batch."""


class TraceObserver(Observer):
    """Keeps the report of every step, for tables and for colored traces such as Figure 1.

    In a notebook, one with `probabilities` shows itself as an interactive figure.

    Args:
        probabilities: Keep p, q and the random numbers of each draft token, too. The tokens stay the same; each
            step takes longer.

    Attributes:
        reports: The reports, in order.
    """

    def __init__(self, *, probabilities: bool = False) -> None:
        self.probabilities = probabilities
        self.reports: list[StepReport] = []
        self._tokenizer: Any = None

    def on_step(self, report: StepReport) -> None:
        """Keep the report."""
        self.reports.append(report)

    def on_end(self, result: BatchResult) -> None:
        """Keep the tokenizer, which spells the tokens."""
        self._tokenizer = result.sequences[0].tokenizer

    def traces(self) -> list[dict[str, Any]]:
        """Return the trace of each sequence as plain data, which `specdec_core.trace.trace_html` draws.

        Numbers have seven digits, as float32 has.

        Raises:
            ArgumentError: There are no reports with `verification`.
        """
        if not self.reports or any(report.verification is None for report in self.reports):
            raise ArgumentError(
                "this observer has no probabilities to show: make it with TraceObserver(probabilities=True), and "
                "pass it to a decoding without beams."
            )
        return [self._trace(row) for row in range(len(self.reports[0].asked))]

    def _trace(self, row: int) -> dict[str, Any]:
        steps: list[dict[str, Any]] = []
        begin, greedy = 0.0, False
        for report in self.reports:
            if report.outcome.committed[row]:
                assert report.verification is not None
                greedy = report.verification[row].r is None
                items = list(_items(report, report.verification[row], row, speller(self._tokenizer)))
                times = {"begin": begin, "draft": report.draft_seconds, "verify": report.verify_seconds}
                times |= {"seconds": report.step_seconds}
                steps.append({**{name: _rounded(seconds) for name, seconds in times.items()}, "items": items})
            begin += report.step_seconds
        tokens = sum(len(report.outcome.committed[row]) for report in self.reports)
        return {"tokens": tokens, "greedy": greedy, "steps": steps}

    def _repr_html_(self) -> str | None:
        if not self.reports or any(report.verification is None for report in self.reports):
            return None
        return "".join(map(trace_html, self.traces()))


def _items(
    report: StepReport, found: Verification, row: int, spell: Callable[[int], str]
) -> Iterator[dict[str, Any]]:
    """Yield the tokens of a step in the order of Figure 1, each with its fate and the numbers that decided it."""
    drafted, by = report.outcome.drafted[row], {"algorithm_1": found.algorithm_1}
    tests = iter(found.tests if drafted else ())
    for token, origin in zip(report.outcome.committed[row], report.origins[row], strict=True):
        if origin == "forced":
            yield {"text": spell(token), "fate": origin}
            continue
        for test in tests:
            top = [[spell(other), _rounded(p), _rounded(q)] for other, p, q in test.top]
            fate = "accepted" if test.accepted else "rejected"
            numbers = {"p": test.p, "q": test.q, "r": test.r, "l": test.lenience}
            rounded = {name: _rounded(value) for name, value in numbers.items()}
            yield {"text": spell(test.token), "fate": fate, **rounded, "top": top, **by}
            if test.accepted:
                break
        if origin != "accepted":
            top = [[spell(other), _rounded(share)] for other, share in found.top]
            yield {"text": spell(token), "fate": origin, "r": _rounded(found.r), "top": top, **by}
        if origin == "recovered" and report.outcome.parents is None:
            left = report.draft_tokens[row][report.outcome.accepted[row] + 1 :]
            yield from ({"text": spell(other), "fate": "unverified"} for other in left)


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.7g}")


def stream_text(
    steps: Generator[StepReport, None, R], tokenizer: Any = None, row: int = 0
) -> Generator[str, None, R]:
    """Yield the text that each step adds to a sequence; all of it is the text of the new tokens.

    Tokens are not decoded one by one: tokenizers drop a space where a text begins, and a character may be spread
    over several tokens, whose text comes with the last of them.

    Args:
        steps: What `Decoder.stream` or `Chat.stream` returns.
        tokenizer: The target's; None for ids.
        row: The number of the sequence in its batch.

    Returns:
        What the steps return.
    """
    tokens: list[int] = []
    begin = read = 0  # what is yielded is the text of tokens[:read], decoded from `begin` on for its spaces
    while True:
        try:
            tokens += next(steps).outcome.committed[row]
            ended = False
        except StopIteration as end:
            result: R = end.value
            ended = True
        if tokenizer is None:
            text, done = "".join(f" {token}" for token in tokens[read:]), ""
        else:
            text, done = (
                tokenizer.decode(tokens[begin:last], skip_special_tokens=True) for last in (len(tokens), read)
            )
        if len(text) > len(done) and (ended or not text.endswith("\ufffd")):
            yield text[len(done) :]
            begin, read = read, len(tokens)
        if ended:
            return result
