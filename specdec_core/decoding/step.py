"""The step of Algorithm 1, and the batch that repeats it until every sequence has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from torch import Tensor

from specdec_core.decoding.decision import Verified, cut
from specdec_core.decoding.drafting.proposer import Proposer
from specdec_core.decoding.drafting.validation import copied
from specdec_core.decoding.metrics import Metrics, Tally
from specdec_core.decoding.row import Row
from specdec_core.decoding.stopping import StopRule
from specdec_core.decoding.tokens import TokenView
from specdec_core.decoding.verifier import Verifier
from specdec_core.interface import LAST_HIDDEN, Outcome, Proposal, StepReport
from specdec_core.models import ModelSession, inference_only, uploaded
from specdec_core.sampling.constraints import Constraints


class Batch:
    """The state of one batch, and its step.

    Args:
        rows: The sequences.
        target: The target's cached forward pass.
        proposer: Drafter and gamma controller.
        verifier: Acceptance rule and lenience.
        stops: Decides when a sequence ends.
        constraints: Says where texts are complete and which tokens are forced. None inside a hierarchy, where the
            target's batch decides that.
        keep_open: Leave the target's cache open at the end: somebody else keeps it.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        target: ModelSession,
        proposer: Proposer,
        verifier: Verifier,
        stops: StopRule,
        constraints: Constraints | None = None,
        *,
        keep_open: bool = False,
    ) -> None:
        self.rows = rows
        self._tokens = tuple(TokenView(row.tokens) for row in rows)
        self._hidden: Tensor | None = None  # [B, D], what the last token of each row was predicted from
        self._target = target
        self._proposer = proposer
        self._verifier = verifier
        self._stops = stops
        self._constraints = constraints
        self._keep_open = keep_open
        self._tally = Tally()

    def record_verification(self) -> None:
        """Keep the numbers that decide each step, in its report."""
        self._verifier.recording = True

    @property
    def p(self) -> Tensor | None:
        """See `Verifier.p`."""
        return self._verifier.p

    @property
    def metrics(self) -> Metrics:
        """Counts and times of the steps so far."""
        return self._tally.metrics

    @property
    def done(self) -> bool:
        """Whether every sequence has ended."""
        return all(row.reason for row in self.rows)

    @inference_only
    def step(self) -> StepReport:
        """Draft, verify with one target forward pass, commit; return the report.

        Raises:
            NumericsError: The target's logits are not a distribution.
        """
        started = perf_counter()
        opening = self._opening()
        proposal, faults = self._propose() if opening is None else (opening, None)
        proposed = perf_counter()

        verified = self._verifier.verify(self.rows, proposal, faults, self._target, self._uncached())
        verify_seconds = perf_counter() - proposed
        verification = None
        if self._verifier.recording:
            begun = perf_counter()
            verification = self._verifier.recorded(self.rows, verified)
            started += perf_counter() - begun  # not a part of the step

        committed, forced = self._append(verified, None if opening is None else opening.lengths)
        outcome = self._outcome(verified, committed, drafted=opening is None)
        self._proposer.commit(outcome)
        report = StepReport(
            step=self._tally.steps,
            asked=self._proposer.asked,
            outcome=outcome,
            draft_tokens=tuple(map(tuple, cut(verified.draft, outcome.drafted))),
            draft_seconds=self._proposer.seconds,
            verify_seconds=verify_seconds,
            step_seconds=perf_counter() - started,
            deviation=_deviation(verified, outcome),
            forced=forced,
            verification=verification,
        )
        self._tally.add(report)
        self._proposer.observe(report)
        self._verifier.observe(report)
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
        self._hidden = None  # it may belong to a token that is gone
        self._target.rollback(lengths)
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
        if not self._keep_open:
            self._target.close()

    def _opening(self) -> Proposal | None:
        """Return the forced tokens that the texts begin with, as the first step's proposal; None for none.

        They are read together with the prompt. Everywhere else, forced tokens are committed right after the token
        before them.
        """
        if self._constraints is None or self._tally.steps:
            return None
        forced = [self._constraints.forced(n, row.tokens, row.room) for n, row in enumerate(self.rows)]
        return copied(Proposal.from_rows(forced), self._target.device) if any(forced) else None

    def _propose(self) -> tuple[Proposal, Tensor | None]:
        """Return the drafter's proposal, and what is wrong with it."""
        states: Mapping[int, Tensor] = {}
        if self._hidden is not None:  # after a rollback, rows may hold tokens that the target has not read
            states = {LAST_HIDDEN: self._hidden, **self._target.hidden_states}
        return self._proposer.propose(self._tokens, [row.room for row in self.rows], states)

    def _uncached(self) -> list[Sequence[int]]:
        """Return the committed tokens that the target has not read: at first the prompt, later the last token."""
        pairs = zip(self.rows, self._target.lengths, strict=True)
        return [() if row.reason else row.tokens[cached:] for row, cached in pairs]

    def _append(
        self, verified: Verified, opening: Sequence[int] | None
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Append what was verified, roll back the rest of the draft, then append the tokens that are forced now.

        Args:
            verified: What verification decided.
            opening: The number of draft tokens of each row that were forced; None where a drafter drafted.

        Returns:
            The tokens appended to each row, and the indices of those among them that were forced.
        """
        new = [() if row.reason else self._extend(n, verified.tokens(n)) for n, row in enumerate(self.rows)]
        if self._target.hidden is not None:
            # The next token, recovered or bonus, was predicted from the hidden state of the last accepted one.
            rows, columns = uploaded([[*range(len(new))], verified.last], self._target.hidden.device)
            self._hidden = self._target.hidden[rows, columns]
        if verified.paths is not None:
            self._target.keep(verified.paths)
        self._target.rollback([len(row.tokens) - 1 for row in self.rows])
        if self._constraints is None:
            return tuple(new), ()
        forced = []
        for n, row in enumerate(self.rows):
            more = () if row.reason else self._constraints.forced(n, row.tokens, row.limit - len(row.tokens))
            begun, before = 0 if opening is None else min(opening[n], len(new[n])), len(new[n])
            if more:
                new[n] += self._extend(n, list(more))
                self._hidden = None  # the target has not read the last token's predecessor
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

    def _outcome(self, verified: Verified, committed: tuple[tuple[int, ...], ...], *, drafted: bool) -> Outcome:
        """Return what the drafter is told; where forced tokens were verified, nobody drafted."""
        lengths = verified.lengths if drafted else (0,) * len(committed)
        most = zip(lengths, verified.accepted, committed, strict=True)
        accepted = tuple([min(length, n, len(new)) for length, n, new in most])
        return Outcome(
            drafted=lengths,
            accepted=accepted,
            committed=committed,
            finished=tuple([row.reason is not None for row in self.rows]),
            parents=None if verified.parents is None else tuple(map(tuple, verified.parents)),
            paths=None if verified.paths is None else tuple(map(tuple, cut(verified.paths, accepted))),
        )


def _deviation(verified: Verified, outcome: Outcome) -> tuple[float, ...]:
    """Return the cost of lenience in each row, at the positions that were verified before its end."""
    if not verified.deviation:
        return (0.0,) * len(outcome.accepted)
    rows = zip(verified.deviation, outcome.accepted, outcome.committed, strict=True)
    return tuple(sum(costs[: min(n + 1, len(new))]) for costs, n, new in rows)
