"""The step of Algorithm 1, and the batch that repeats it until every sequence has ended.

There is one loop for every drafter. Who answers a draft is an `Oracle`: the target model (`verify`), or what
stands for it, such as a recorded text or the script of a test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from time import perf_counter

import torch
from torch import Tensor

from specdec_core.decoding.answer import Answered, cut
from specdec_core.decoding.proposer import Proposer
from specdec_core.decoding.rows import Row, StopRule, TokenView
from specdec_core.decoding.validation import copied
from specdec_core.interface import Outcome, Proposal, StepReport
from specdec_core.interface.outcome import Verification
from specdec_core.models.device import inference_only
from specdec_core.sampling.constraints import Constraints


class Oracle(ABC):
    """Answers the drafts of a batch.

    Attributes:
        device: Where it reads drafts.
    """

    device: torch.device

    @abstractmethod
    def hidden_states(self, rows: Sequence[Row]) -> Mapping[int, Tensor]:
        """Return the hidden states that drafters read; see `DraftRequest`. None where they are not known."""

    def room(self, rows: Sequence[Row]) -> list[int]:
        """Return how many tokens may be drafted for each row."""
        return [row.room for row in rows]

    def waiting(self, rows: Sequence[Row]) -> Sequence[int]:  # noqa: ARG002
        """Return how many tokens of each row, which are read with its draft, take the place of draft tokens.

        Nothing if no row has any.
        """
        return ()

    @abstractmethod
    def answer(self, rows: Sequence[Row], proposal: Proposal, faults: Tensor | None) -> Answered:
        """Decide how much of a draft `[B, K]` is accepted, and which token follows.

        Args:
            rows: The sequences.
            proposal: The draft; empty in rows that have ended.
            faults: `[B, K]`, a code of `validation` for each position; None if nothing can be wrong.
        """

    def record(self, answered: Answered) -> tuple[Verification, ...]:  # noqa: ARG002
        """Return the numbers that decided the last answer; called only if the batch records them."""
        return ()

    @abstractmethod
    def keep(self, rows: Sequence[Row], answered: Answered) -> None:
        """Take note that the rows have grown by what was answered, cut where they ended."""

    def rollback(self, lengths: Sequence[int]) -> None:  # noqa: B027
        """Keep only the first `lengths[b]` tokens of each row b."""

    def observe(self, report: StepReport) -> None:  # noqa: B027
        """Take note of the report of a step."""

    def close(self) -> None:  # noqa: B027
        """Free what it holds."""


class Batch:
    """The state of one batch, and its step.

    Args:
        rows: The sequences.
        oracle: Answers the drafts.
        proposer: Drafter and gamma controller.
        stops: Decides when a sequence ends.
        constraints: Says where texts are complete and which tokens are forced. None inside a hierarchy, where the
            target's batch decides that.

    Attributes:
        recording: Whether the report of each step has the numbers that decided it.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        oracle: Oracle,
        proposer: Proposer,
        stops: StopRule,
        constraints: Constraints | None = None,
    ) -> None:
        self.rows, self.oracle, self.recording = rows, oracle, False
        self._tokens = tuple(TokenView(row.tokens) for row in rows)
        self._proposer, self._stops, self._constraints = proposer, stops, constraints
        self._steps = 0

    @property
    def done(self) -> bool:
        """Whether every sequence has ended."""
        return all(row.reason for row in self.rows)

    @inference_only
    def step(self) -> StepReport:
        """Draft, have the draft answered, commit; return the report.

        Raises:
            NumericsError: The target's logits are not a distribution.
        """
        started = perf_counter()
        opening = self._opening()
        if opening is not None:
            proposal, faults = opening, None
        else:
            states = self.oracle.hidden_states(self.rows)
            room, waiting = self.oracle.room(self.rows), self.oracle.waiting(self.rows)
            proposal, faults = self._proposer.propose(self._tokens, room, states, waiting)
        proposed = perf_counter()

        answered = self.oracle.answer(self.rows, proposal, faults)
        verify_seconds = perf_counter() - proposed
        verification = None
        if self.recording:
            begun = perf_counter()
            verification = self.oracle.record(answered)
            started += perf_counter() - begun  # not a part of the step

        committed, forced = self._append(answered, None if opening is None else opening.lengths)
        outcome = self._outcome(answered, committed, drafted=opening is None)
        self._proposer.commit(outcome)
        report = StepReport(
            step=self._steps,
            asked=self._proposer.asked if opening is None else (0,) * len(committed),
            outcome=outcome,
            draft_tokens=tuple(map(tuple, cut(answered.draft, outcome.drafted))),
            draft_seconds=self._proposer.seconds,
            verify_seconds=verify_seconds,
            step_seconds=perf_counter() - started,
            deviation=_deviation(answered, outcome),
            forced=forced,
            verification=verification,
        )
        self._steps += 1
        self._proposer.observe(report)
        self.oracle.observe(report)
        return report

    def commit(self, outcome: Outcome) -> None:
        """Append tokens that were committed without a step of this batch, as the level above a hierarchy does."""
        for row, new in zip(self.rows, outcome.committed, strict=True):
            row.tokens += new
            row.begin = len(row.tokens)
        self._proposer.commit(outcome)

    def rollback(self, lengths: Sequence[int]) -> None:
        """Keep only the first `lengths[b]` tokens of each row b, as a hierarchy may have to."""
        for row, length in zip(self.rows, lengths, strict=True):
            del row.tokens[length:]
            row.begin = min(row.begin, length)
        self.oracle.rollback(lengths)
        self._proposer.rollback(lengths)

    def resume(self, tokens: Sequence[Sequence[int]], limits: Sequence[int]) -> None:
        """Continue rows that have ended, as a hierarchy does for each draft.

        Args:
            tokens: The text of each row, which begins with the tokens that it has.
            limits: The maximum number of tokens of each row; one that has as many stays ended.
        """
        for row, text, limit in zip(self.rows, tokens, limits, strict=True):
            row.tokens += text[len(row.tokens) :]
            row.begin, row.limit = len(row.tokens), limit
            row.reason = "length" if row.begin >= limit else None

    def end(self, ended: Sequence[bool]) -> None:
        """End some rows, until they are resumed."""
        for row, over in zip(self.rows, ended, strict=True):
            row.reason = "length" if over else row.reason

    def close(self) -> None:
        """Close the drafter's session and free the cache."""
        self._proposer.close()
        self.oracle.close()

    def _opening(self) -> Proposal | None:
        """Return the forced tokens that the texts begin with, as the first step's proposal; None for none.

        They are read together with the prompt. Everywhere else, forced tokens are committed right after the token
        before them.
        """
        if self._constraints is None or self._steps:
            return None
        forced = [self._constraints.forced(n, row.tokens, row.room) for n, row in enumerate(self.rows)]
        return copied(Proposal.from_rows(forced), self.oracle.device) if any(forced) else None

    def _append(
        self, answered: Answered, opening: Sequence[int] | None
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Append what was answered, then the tokens that are forced now.

        Args:
            answered: The answer to the draft.
            opening: The number of draft tokens of each row that were forced; None where a drafter drafted.

        Returns:
            The tokens appended to each row, and the indices of those among them that were forced.
        """
        new = [() if row.reason else self._extend(n, answered.tokens(n)) for n, row in enumerate(self.rows)]
        self.oracle.keep(self.rows, answered)
        if self._constraints is None:
            return tuple(new), ()
        forced = []
        for n, row in enumerate(self.rows):
            more = () if row.reason else self._constraints.forced(n, row.tokens, row.limit - len(row.tokens))
            begun, before = 0 if opening is None else min(opening[n], len(new[n])), len(new[n])
            if more:
                new[n] += self._extend(n, list(more))
            forced.append((*range(begun), *range(before, len(new[n]))))
        return tuple(new), tuple(forced)

    def _extend(self, index: int, new: list[int]) -> tuple[int, ...]:
        """Append tokens to a row up to where it ends; return those that were appended."""
        row = self.rows[index]
        seen = max(row.begin, len(row.tokens) - self._stops.reach)
        kept, row.reason = self._stops.clip(row.tokens[seen:], new)
        end = None if self._constraints is None else self._constraints.end(index, row.tokens + kept)
        if end is not None and (row.reason is None or end < len(row.tokens) + len(kept)):
            kept, row.reason = kept[: end - len(row.tokens)], "stop"
        row.tokens += kept
        if row.reason is None and len(row.tokens) >= row.limit:
            row.reason = row.reason_at_limit
        return tuple(kept)

    def _outcome(self, answered: Answered, committed: tuple[tuple[int, ...], ...], *, drafted: bool) -> Outcome:
        """Return what the drafter is told; where forced tokens were verified, nobody drafted."""
        lengths = answered.lengths if drafted else (0,) * len(committed)
        most = zip(lengths, answered.accepted, committed, strict=True)
        accepted = tuple([min(length, n, len(new)) for length, n, new in most])
        return Outcome(
            drafted=lengths,
            accepted=accepted,
            committed=committed,
            finished=tuple([row.reason is not None for row in self.rows]),
            parents=None if answered.parents is None else tuple(map(tuple, answered.parents)),
            paths=None if answered.paths is None else tuple(map(tuple, cut(answered.paths, accepted))),
        )


def _deviation(answered: Answered, outcome: Outcome) -> tuple[float, ...]:
    """Return the cost of lenience in each row, at the positions that were verified before its end."""
    if not answered.deviation:
        return (0.0,) * len(outcome.accepted)
    rows = zip(answered.deviation, outcome.accepted, outcome.committed, strict=True)
    return tuple(sum(costs[: min(n + 1, len(new))]) for costs, n, new in rows)
