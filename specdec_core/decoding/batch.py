"""One batch while it is decoded: the step of Algorithm 1, repeated until every sequence has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from specdec_core.decoding.metrics import Metrics, Tally
from specdec_core.decoding.proposer import Proposer
from specdec_core.decoding.stopping import FinishReason, StopRule
from specdec_core.decoding.tokens import TokenView
from specdec_core.decoding.tree_drafting import all_paths
from specdec_core.decoding.validation import copied
from specdec_core.decoding.verifier import Verifier
from specdec_core.interface import NumericsError, Outcome, Proposal, StepReport
from specdec_core.models import ModelSession, inference_only
from specdec_core.models.device import fetched
from specdec_core.sampling.constraints import Constraints
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.verification import AcceptanceResult

_UNIT = 2.0**-40
"""Deviations are fetched from the device as multiples of this, in the same int64 tensor as token ids."""


@dataclass
class Row:
    """One sequence while it is decoded.

    Attributes:
        tokens: All committed tokens, prompt first (for encoder-decoder targets the start token). It is one list
            from beginning to end: plugins have a view of it.
        begin: Number of them that were there before decoding.
        limit: Maximum number of tokens.
        reason_at_limit: Finish reason at the limit.
        reason: Finish reason, or None while the sequence is being decoded.
    """

    tokens: list[int]
    begin: int
    limit: int
    reason_at_limit: FinishReason
    reason: FinishReason | None = None

    @property
    def room(self) -> int:
        """Number of tokens that may be drafted: the last place is for the recovered or bonus token."""
        return 0 if self.reason else self.limit - len(self.tokens) - 1


@dataclass(frozen=True)
class _StepNumbers:
    """The numbers of a step, fetched from the device in one transfer; a list entry per row.

    Attributes:
        accepted: n of Algorithm 1.
        token: The recovered or bonus token.
        fault: What is wrong with the draft, 0 for nothing; empty if nothing can be.
        sound: Whether the token was drawn from a distribution, and not from NaN; see also `Verifier.instead`.
        draft: The draft tokens.
        parents: The parent of each draft token; None for lines.
        paths: The numbers of the accepted draft tokens; None for lines.
        deviation: What lenience costs at each of them, in units of `_UNIT`; empty where l = 1.
    """

    accepted: list[int]
    token: list[int]
    fault: list[int]
    sound: list[int]
    draft: list[list[int]]
    deviation: list[list[int]]
    parents: list[list[int]] | None = None
    paths: list[list[int]] | None = None

    def accepted_tokens(self, row: int) -> list[int]:
        """Return the accepted tokens of a row."""
        draft = self.draft[row]
        return draft[: self.accepted[row]] if self.paths is None else [draft[node] for node in self.paths[row]]


class Batch:
    """The state of one batch, and its step.

    Args:
        rows: The sequences.
        target: The target's cached forward pass.
        proposer: Drafter and controllers.
        to_probs: The target's sampling settings.
        generators: The sequences' random generators.
        stops: Decides when a sequence ends.
        rule: Verifies drafts.
        constraints: Says where texts are complete and which tokens are forced; `to_probs` has the same. None
            inside a hierarchy, where the target's batch decides that.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        target: ModelSession,
        proposer: Proposer,
        to_probs: LogitsToProbs,
        generators: RowGenerators,
        stops: StopRule,
        rule: Verifier,
        constraints: Constraints | None = None,
    ) -> None:
        self.rows = rows
        self._tokens = tuple(TokenView(row.tokens) for row in rows)
        self._p: Tensor | None = None
        self._path: Tensor | None = None
        self._hidden: Tensor | None = None
        self._target = target
        self._proposer = proposer
        self._to_probs = to_probs
        self._generators = generators
        self._stops = stops
        self._rule = rule
        self._constraints = constraints
        self._tally = Tally()

    @property
    def p(self) -> Tensor | None:
        """The target's adjusted distributions of the last step at each position, `[B, K + 1, V]` float32.

        They follow the last token committed before it, and each draft token; of a tree, each accepted one. None
        where they are one-hot (greedy).
        """
        if self._p is None or self._path is None:
            return self._p
        return self._p.gather(1, _columns(self._path)[..., None].expand(-1, -1, self._p.shape[2]))

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
            NumericsError: The target's logits are no distribution.
        """
        started = perf_counter()
        self._p = self._path = None
        opening = self._opening()
        if opening is None:
            # After a rollback, rows may hold tokens that the target has not read.
            states = None if self._hidden is None else self._target.hidden_states
            room = [row.room for row in self.rows]
            proposal, faults = self._proposer.propose(self._tokens, room, self._hidden, states)
        else:
            proposal, faults = opening, None
        proposed = perf_counter()
        logits = self._target.forward(self._uncached(), proposal.tokens, proposal.lengths, proposal.parents)
        proposal = proposal if opening is None else copied(proposal, logits.device)
        proposal, numbers = self._verify(proposal, logits, faults)
        return self._commit(proposal, numbers, started, perf_counter() - proposed, opening)

    def _opening(self) -> Proposal | None:
        """Return the forced tokens that the texts begin with, as the first step's proposal; None for none.

        They are read together with the prompt. Everywhere else, forced tokens are committed right after the token
        before them.
        """
        if self._constraints is None or self._tally.steps:
            return None
        forced = [self._constraints.forced(n, row.tokens, row.room) for n, row in enumerate(self.rows)]
        if not any(forced):
            return None
        return Proposal.from_rows(forced)

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

    def close(self) -> None:
        """Close the drafter's session and free the cache."""
        self._proposer.close()
        self._target.close()

    def _uncached(self) -> list[Sequence[int]]:
        """Return the committed tokens that the target has not read: at first the prompt, later the last token."""
        pairs = zip(self.rows, self._target.lengths, strict=True)
        return [() if row.reason else row.tokens[cached:] for row, cached in pairs]

    def _verify(self, proposal: Proposal, logits: Tensor, faults: Tensor | None) -> tuple[Proposal, _StepNumbers]:
        """Verify the draft; if the draft itself turns out to be wrong, continue as if there had been none."""
        numbers = self._fetch(proposal, self._accept(proposal, logits), faults)
        if any(numbers.fault):
            self._proposer.reject(max(numbers.fault))
            proposal = Proposal.empty(len(self.rows), logits.device)
            logits = logits[:, :1]
            numbers = self._fetch(proposal, self._accept(proposal, logits), None)
        answer = self._rule.instead(numbers.sound, [row.reason is not None for row in self.rows])
        if answer is not None:
            numbers = self._fetch(proposal, answer, None)
        for index, (row, sound) in enumerate(zip(self.rows, numbers.sound, strict=True)):
            if not sound and row.reason is None:
                raise NumericsError(
                    f"the target's logits after {len(row.tokens)} tokens of row {index} are no distribution: NaN, "
                    "infinity, or nothing left after filtering. Check the weights, the dtype (float16 overflows "
                    "where bfloat16 does not), custom logits processors, and a temperature close to 0 "
                    "(0 itself is greedy)."
                )
        return proposal, numbers

    def _accept(self, proposal: Proposal, logits: Tensor) -> AcceptanceResult:
        """Apply the acceptance rule, with each row's own lenience and random numbers."""
        batch, width = proposal.tokens.shape
        prefixes = self._prefixes(proposal) if self._to_probs.needs_prefix else None
        flat = logits.reshape(batch * (width + 1), -1)
        l_each = self._proposer.lenience(width)
        lenience = None if l_each is None else torch.tensor(l_each, device=logits.device)
        if self._to_probs.greedy:
            scores = self._to_probs.scores(flat, prefixes).view(batch, width + 1, -1)
            return self._rule.greedy(proposal, scores, lenience)
        self._p = self._to_probs(flat, prefixes).view(batch, width + 1, -1)
        return self._rule.sample(proposal, self._p, lenience, self._uniforms(proposal))

    def _fetch(self, proposal: Proposal, result: AcceptanceResult, faults: Tensor | None) -> _StepNumbers:
        """Fetch a step's numbers from the device: the one synchronisation of a step."""
        if self._target.hidden is not None:
            # The next token, recovered or bonus, was predicted from the hidden state of the last accepted one.
            rows = torch.arange(len(self.rows), device=result.accepted.device)
            last = result.accepted if result.path is None else _columns(result.path)[rows, result.accepted]
            self._hidden = self._target.hidden[rows, last]
        deviation = None if result.deviation is None else (result.deviation.double() / _UNIT).round().long()
        self._path = None if proposal.parents is None else result.path
        optional = (faults, deviation, proposal.parents, self._path)
        accepted, token, sound, draft, *others = fetched(
            result.accepted, result.token, result.sound, proposal.tokens, *(p for p in optional if p is not None)
        )
        others.reverse()
        fault, costs, parents, paths = (None if part is None else others.pop() for part in optional)
        lengths = proposal.lengths
        return _StepNumbers(
            accepted,
            token,
            fault or [],
            sound,
            _cut(draft, lengths),
            [] if costs is None else _cut(costs, lengths),
            None if parents is None or paths is None else _cut(parents, lengths),
            None if paths is None else _cut(paths, accepted),
        )

    def _uniforms(self, proposal: Proposal) -> Tensor:
        """Draw r_1 ... r_n of each row, and the number for its next token in the last column, `[B, K + 1]`."""
        width = proposal.tokens.shape[1]
        # A finished row consumes none: inside a hierarchy it resumes later, whatever its neighbours did.
        pairs = zip(self.rows, proposal.lengths, strict=True)
        counts = [0 if row.reason else n + 1 for row, n in pairs]
        drawn = self._generators.uniforms(counts, width + 1, proposal.tokens.device)
        if min(proposal.lengths) < width:
            # A row with a shorter draft has its last number further left; r beyond a draft is never used.
            last = torch.tensor(proposal.lengths, device=drawn.device)
            drawn[:, width] = drawn.gather(1, last[:, None])[:, 0]
        return drawn

    def _prefixes(self, proposal: Proposal) -> list[list[int]]:
        """Return the prefix of every verified position, row by row."""
        drafts = proposal.tokens.tolist()
        if proposal.parents is not None:
            trees = zip(self.rows, drafts, proposal.parents.tolist(), strict=True)
            return [row.tokens + path for row, *tree in trees for path in all_paths(*tree)]
        return [
            row.tokens + draft[:position]
            for row, draft in zip(self.rows, drafts, strict=True)
            for position in range(proposal.tokens.shape[1] + 1)
        ]

    def _commit(
        self,
        proposal: Proposal,
        numbers: _StepNumbers,
        started: float,
        verify_seconds: float,
        opening: Proposal | None,
    ) -> StepReport:
        """Append the accepted tokens and the one that follows, roll back the rest, and report to everyone."""
        committed: list[tuple[int, ...]] = []
        for index, (row, token) in enumerate(zip(self.rows, numbers.token, strict=True)):
            new = [*numbers.accepted_tokens(index), token]
            committed.append(() if row.reason else self._append(index, new))
        if numbers.paths is not None:
            self._target.keep(numbers.paths)
        self._target.rollback([len(row.tokens) - 1 for row in self.rows])
        forced: list[tuple[int, ...]] = []
        if self._constraints is not None:
            committed, forced = self._fast_forward(committed, opening)
        drafted, accepted = (0,) * len(committed), (0,) * len(committed)  # nobody drafted an opening
        if opening is None:
            drafted = proposal.lengths
            accepted = tuple(min(n, len(new)) for n, new in zip(numbers.accepted, committed, strict=True))
        outcome = Outcome(
            drafted=drafted,
            accepted=accepted,
            committed=tuple(committed),
            finished=tuple(row.reason is not None for row in self.rows),
            used=max(drafted) > 0,
            parents=None if numbers.parents is None else tuple(map(tuple, numbers.parents)),
            paths=None if numbers.paths is None else tuple(map(tuple, _cut(numbers.paths, accepted))),
        )
        self._proposer.commit(outcome)
        report = StepReport(
            step=self._tally.steps,
            asked=self._proposer.asked,
            outcome=outcome,
            draft_tokens=tuple(map(tuple, _cut(numbers.draft, drafted))),
            draft_seconds=self._proposer.seconds,
            verify_seconds=verify_seconds,
            step_seconds=perf_counter() - started,
            deviation=_deviation(numbers, outcome),
            forced=tuple(forced),
        )
        self._tally.add(report)
        self._proposer.observe(report)
        return report

    def _fast_forward(
        self, committed: Sequence[tuple[int, ...]], opening: Proposal | None
    ) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Append the tokens that are forced now; return all that is committed, and the places of forced tokens."""
        assert self._constraints is not None
        every, places = [], []
        for index, (row, new) in enumerate(zip(self.rows, committed, strict=True)):
            more = () if row.reason else self._constraints.forced(index, row.tokens, row.limit - len(row.tokens))
            added = self._append(index, list(more)) if more else ()
            begun = 0 if opening is None else min(opening.lengths[index], len(new))
            every.append(new + added)
            places.append((*range(begun), *range(len(new), len(new) + len(added))))
        if any(len(one) > len(new) for one, new in zip(every, committed, strict=True)):
            self._hidden = None  # the target has not read the last token's predecessor
        return every, places

    def _append(self, index: int, new: list[int]) -> tuple[int, ...]:
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


def _columns(path: Tensor) -> Tensor:
    """Return the columns of logits along the accepted paths of a tree, `[B, K + 1]`: column 0, then the nodes'."""
    return torch.cat([torch.zeros_like(path[:, :1]), path + 1], dim=1)


def _cut(rows: Sequence[list[int]], lengths: Sequence[int]) -> list[list[int]]:
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def _deviation(numbers: _StepNumbers, outcome: Outcome) -> tuple[float, ...]:
    """Return what lenience cost in each row, at the positions that were verified before its end."""
    if not numbers.deviation:
        return (0.0,) * len(outcome.accepted)
    rows = zip(numbers.deviation, outcome.accepted, outcome.committed, strict=True)
    return tuple(_UNIT * sum(costs[: min(n + 1, len(new))]) for costs, n, new in rows)
