"""One batch while it is decoded: the step of Algorithm 1, again and again, until all rows have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from specdec_core.acceptance import Verdict
from specdec_core.border import Outcome, Proposal, StepReport
from specdec_core.decoding.checking import FAULTS, inspect_draft
from specdec_core.decoding.metrics import Metrics, Tally
from specdec_core.decoding.rules import Case, Rule, speculative_sampling
from specdec_core.decoding.speculation import Fence, Speculation
from specdec_core.decoding.stopping import FinishReason, StopRule
from specdec_core.errors import NumericsError
from specdec_core.inference import inference_only
from specdec_core.models import ModelSession
from specdec_core.randomness import RowStreams
from specdec_core.sampling import Standardiser

_UNIT = 2.0**-40
"""Total variation crosses from the device as whole numbers of this, beside token ids."""


@dataclass
class Row:
    """One sequence while it is decoded.

    Attributes:
        tokens: All committed tokens, the prompt first (for encoder-decoder targets the start token).
        begin: How many of them were there before decoding.
        limit: The most tokens it may hold.
        full: What it is called when the limit is reached.
        reason: Why it ended, or None while it goes on.
    """

    tokens: list[int]
    begin: int
    limit: int
    full: FinishReason
    reason: FinishReason | None = field(default=None)

    @property
    def room(self) -> int:
        """How many tokens may be drafted: the last place is for the token that the target draws."""
        return 0 if self.reason else self.limit - len(self.tokens) - 1


@dataclass(frozen=True)
class _Judged:
    """The numbers of a step, fetched from the device in one transfer; a list entry a row.

    Attributes:
        accepted: n of Algorithm 1.
        token: The recovered or bonus token.
        fault: What is wrong with the draft, 0 for nothing.
        sound: Whether p, where the token was drawn, was a distribution.
        draft: The draft tokens.
        deviation: What lenience costs at each of them, in units of `_UNIT`; nothing where l = 1.
    """

    accepted: list[int]
    token: list[int]
    fault: list[int]
    sound: list[int]
    draft: list[list[int]]
    deviation: list[list[int]]


class Batch:
    """The state of one batch, and its step.

    Args:
        rows: The sequences.
        target: The target's cached forward.
        speculation: The guessing side.
        standardiser: The target's settings.
        streams: The rows' random numbers.
        stops: When a row ends.
        fence: Where plugin failures go.
        vocab_size: V.
        rule: What judges the drafts.

    Attributes:
        p: The target's adjusted distributions of the last step, `[B, K + 1, V]` float32: after the last token
            committed before it, and after each draft token. None where they are one-hot (argmax).
    """

    def __init__(
        self,
        rows: Sequence[Row],
        target: ModelSession,
        speculation: Speculation,
        standardiser: Standardiser,
        streams: RowStreams,
        stops: StopRule,
        fence: Fence,
        vocab_size: int,
        rule: Rule = speculative_sampling,
    ) -> None:
        self.rows = rows
        self.p: Tensor | None = None
        self._hidden: Tensor | None = None
        self._target = target
        self._speculation = speculation
        self._standardise = standardiser
        self._streams = streams
        self._stops = stops
        self._fence = fence
        self._vocab_size = vocab_size
        self._rule = rule
        self._tally = Tally()

    @property
    def metrics(self) -> Metrics:
        """Counts and times of the steps so far."""
        return self._tally.metrics

    @property
    def done(self) -> bool:
        """Whether every row has ended."""
        return all(row.reason for row in self.rows)

    @inference_only
    def step(self) -> StepReport:
        """Draft, verify with one target call, commit; return what happened.

        Raises:
            NumericsError: The target's logits are no distribution.
        """
        begun = perf_counter()
        self.p = None
        room = [row.room for row in self.rows]
        proposal, trusted = self._speculation.propose([row.tokens for row in self.rows], room, self._hidden)
        asked = perf_counter()
        proposal, fault = inspect_draft(proposal, self._vocab_size, trusted=trusted)
        logits = self._forward(proposal)
        proposal, judged = self._verify(proposal, logits, fault)
        answered = perf_counter()
        return self._commit(proposal, judged, begun, answered - asked)

    def rollback(self, lengths: Sequence[int]) -> None:
        """Take back all but the first `lengths[b]` tokens of each row b, as a hierarchy may have to."""
        for row, length in zip(self.rows, lengths, strict=True):
            del row.tokens[length:]
        self._hidden = None  # of a token that may be gone
        self._target.rollback(lengths)
        self._speculation.rollback(lengths)

    def _forward(self, proposal: Proposal) -> Tensor:
        """Run the target over what is new: the last committed token (at first the prompt) and the draft."""
        fresh = [
            () if row.reason else row.tokens[cached:]
            for row, cached in zip(self.rows, self._target.lengths, strict=True)
        ]
        if proposal.longest == 0:
            return self._target.forward(fresh)
        return self._target.forward(fresh, proposal.tokens, proposal.lengths)

    def _verify(self, proposal: Proposal, logits: Tensor, fault: Tensor) -> tuple[Proposal, _Judged]:
        """Judge the draft; if the draft itself turns out wrong, go on as if there had been none."""
        judged = self._judge(proposal, logits, fault)
        if any(judged.fault):
            self._speculation.reject(FAULTS[max(judged.fault)].format(last=self._vocab_size - 1))
            proposal = Proposal.empty(len(self.rows), logits.device)
            judged = self._judge(proposal, logits[:, :1], torch.zeros_like(fault))
        for index, (row, sound) in enumerate(zip(self.rows, judged.sound, strict=True)):
            if not sound and row.reason is None:
                raise NumericsError(
                    f"the target's logits after {len(row.tokens)} tokens of row {index} are no distribution: NaN, "
                    "infinity, or nothing left after filtering. Check the weights, the dtype (float16 overflows "
                    "where bfloat16 does not) and custom logits processors."
                )
        return proposal, judged

    def _judge(self, proposal: Proposal, logits: Tensor, fault: Tensor) -> _Judged:
        """Apply Algorithm 1 to a draft, and fetch the result: the one wait for the device of a step."""
        verdict = self._decide(proposal, logits)
        if self._target.hidden is not None:
            # What the next token was drawn from, whether recovered or bonus, is behind the last token kept.
            rows = torch.arange(len(self.rows), device=logits.device)
            self._hidden = self._target.hidden[rows, verdict.accepted]
        single = torch.stack([verdict.accepted, verdict.token, fault, verdict.sound.long()], dim=1)
        parts = [single, proposal.tokens]
        if verdict.deviation is not None:
            parts.append((verdict.deviation.double() / _UNIT).round().long())
        numbers = torch.cat(parts, dim=1).tolist()
        accepted, token, faults, sound = ([row[n] for row in numbers] for n in range(4))
        begin = 4 + proposal.tokens.shape[1]
        pairs = list(zip(numbers, proposal.lengths, strict=True))
        draft, deviation = [row[4 : 4 + n] for row, n in pairs], [row[begin : begin + n] for row, n in pairs]
        return _Judged(accepted, token, faults, sound, draft, deviation)

    def _decide(self, proposal: Proposal, logits: Tensor) -> Verdict:
        """Judge the draft by the target's distributions, with each row's own lenience and random numbers."""
        batch, width = proposal.tokens.shape
        prefixes = self._prefixes(proposal) if self._standardise.needs_prefix else None
        flat = logits.reshape(batch * (width + 1), -1)
        lenience = self._speculation.lenience(width)
        l_each = None if lenience is None else torch.tensor(lenience, device=logits.device)
        if self._standardise.argmax:
            scores = self._standardise.scores(flat, prefixes).view(batch, width + 1, -1)
            return self._rule(Case(proposal, None, scores, l_each, None))
        self.p = self._standardise(flat, prefixes).view(batch, width + 1, -1)
        return self._rule(Case(proposal, self.p, None, l_each, self._uniforms(proposal)))

    def _uniforms(self, proposal: Proposal) -> Tensor:
        """Draw r_1 ... r_n of each row, and the number for its next token in the last column."""
        width = proposal.tokens.shape[1]
        # A row that has ended uses up none: within a hierarchy it goes on later, whatever its neighbours did.
        pairs = zip(self.rows, proposal.lengths, strict=True)
        counts = [0 if row.reason else n + 1 for row, n in pairs]
        drawn = self._streams.uniforms(counts, width + 1, proposal.tokens.device)
        if min(proposal.lengths) < width:
            # A row with a shorter draft has its last number further left; r beyond a draft is never looked at.
            last = torch.tensor(proposal.lengths, device=drawn.device)
            drawn[:, width] = drawn.gather(1, last[:, None])[:, 0]
        return drawn

    def _prefixes(self, proposal: Proposal) -> list[list[int]]:
        """Return the prefix of every verified position, row by row: each draft position has its own."""
        drafts = proposal.tokens.tolist()
        return [
            row.tokens + draft[:position]
            for row, draft in zip(self.rows, drafts, strict=True)
            for position in range(proposal.tokens.shape[1] + 1)
        ]

    def _commit(self, proposal: Proposal, judged: _Judged, begun: float, verify_seconds: float) -> StepReport:
        """Append what was kept, roll back the rest, and tell everyone."""
        committed: list[tuple[int, ...]] = []
        for row, n, token, draft in zip(self.rows, judged.accepted, judged.token, judged.draft, strict=True):
            committed.append(() if row.reason else self._append(row, [*draft[:n], token]))
        self._target.rollback([len(row.tokens) - 1 for row in self.rows])
        drafted = proposal.lengths
        accepted = tuple(min(n, len(new)) for n, new in zip(judged.accepted, committed, strict=True))
        finished = tuple(row.reason is not None for row in self.rows)
        used = proposal.longest > 0
        self._speculation.commit(Outcome(drafted, accepted, tuple(committed), finished, used))
        report = StepReport(
            step=self._tally.steps,
            asked=self._speculation.asked,
            drafted=drafted,
            accepted=accepted,
            committed=tuple(committed),
            finished=finished,
            draft_tokens=tuple(tuple(draft) for draft in judged.draft),
            draft_seconds=self._speculation.seconds,
            verify_seconds=verify_seconds,
            step_seconds=perf_counter() - begun,
            deviation=self._deviation(judged, accepted, committed),
        )
        self._tally.add(report)
        self._fence.step = self._tally.steps
        self._speculation.observe(report)
        return report

    @staticmethod
    def _deviation(
        judged: _Judged, accepted: Sequence[int], committed: Sequence[Sequence[int]]
    ) -> tuple[float, ...]:
        """Return what lenience cost in each row, at the positions that were judged before its end."""
        rows = zip(judged.deviation, accepted, committed, strict=True)
        return tuple(_UNIT * sum(costs[: min(n + 1, len(new))]) for costs, n, new in rows)

    def _append(self, row: Row, new: list[int]) -> tuple[int, ...]:
        """Add tokens to a row up to where it ends; return those that were added."""
        seen = max(row.begin, len(row.tokens) - self._stops.reach)
        kept, row.reason = self._stops.clip(row.tokens[seen:], new)
        row.tokens += kept
        if row.reason is None and len(row.tokens) >= row.limit:
            row.reason = row.full
        return tuple(kept)
