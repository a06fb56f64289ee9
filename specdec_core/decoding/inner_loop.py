"""The loop within the loop: a model drafts, and is itself accelerated by a drafter.

Algorithm 1 makes the middle model's tokens exactly its own: whatever the level below guesses, each token is drawn
from the middle model's adjusted distribution after the tokens before it. That distribution is therefore q at each
position, for the level above, and nothing is approximated, to any depth.

References:
    Leviathan et al. 2023, section 6 and Algorithm 1 (arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specdec_core.border import (
    BatchInfo,
    Drafter,
    DraftRequest,
    GammaController,
    Outcome,
    Proposal,
    SessionInfo,
)
from specdec_core.decoding.batch import Batch, Row
from specdec_core.decoding.speculation import Fence, Speculation
from specdec_core.decoding.stopping import StopRule
from specdec_core.models import LoadedModel, ModelSession
from specdec_core.randomness import RowStreams
from specdec_core.sampling import Standardiser


@dataclass(frozen=True)
class LoopOpener:
    """Opens inner loops for a batch; loops opened within one get an opener of their own.

    Attributes:
        standardiser: The settings for drafts, at every level below the target.
        streams: The rows' random numbers.
        fence: Where plugin failures go.
    """

    standardiser: Standardiser
    streams: RowStreams
    fence: Fence

    def for_session(self, info: SessionInfo) -> SessionInfo:
        """Return what drafters may know of a batch, with the means to open a loop in it."""
        return replace(info, loop=lambda model, drafter, gamma: InnerLoop(self, info, model, drafter, gamma))


class InnerLoop:
    """Drafts for one batch with a model that a further drafter guesses for.

    Args:
        opener: What is shared with the loop above.
        above: What drafters may know of the batch above.
        model: The middle model.
        drafter: Who guesses for it.
        gamma: How much.
    """

    def __init__(
        self,
        opener: LoopOpener,
        above: SessionInfo,
        model: LoadedModel,
        drafter: Drafter,
        gamma: GammaController,
    ) -> None:
        # What is drafted stands in a row before the level above has judged it.
        capacity = above.capacity + above.max_gamma
        self._positions = min(capacity, model.max_positions or capacity)
        info = opener.for_session(
            replace(above, capacity=capacity, max_gamma=gamma.max_gamma, device=model.device, loop=None)
        )
        fence = opener.fence.within()
        batch = BatchInfo(
            info.batch_size, gamma.max_gamma, (capacity,) * info.batch_size, opener.standardiser.argmax
        )
        speculation = Speculation(drafter, gamma, None, opener.standardiser, opener.streams, info, batch, fence)
        self._session = ModelSession(
            model,
            above.batch_size,
            capacity,
            above.sources if model.encoder_decoder else None,
            vocab_size=above.vocab_size,
            keep_hidden=speculation.wants_hidden,
        )
        rows = [Row([], 0, 0, "length", "length") for _ in range(above.batch_size)]
        stops = StopRule(frozenset())  # what ends a row is for the target to say
        self._batch = Batch(
            rows,
            self._session,
            speculation,
            opener.standardiser,
            opener.streams,
            stops,
            fence,
            above.vocab_size,
        )
        self._speculation = speculation

    def propose(self, request: DraftRequest) -> Proposal:
        """Decode with the middle model until no row wants more."""
        for row, tokens, budget in zip(self._batch.rows, request.tokens, request.budget, strict=True):
            row.tokens += tokens[len(row.tokens) :]
            row.begin = len(row.tokens)
            row.limit = min(row.begin + budget, self._positions)
            row.reason = "length" if row.begin >= row.limit else None
        while not self._batch.done:
            report = self._batch.step()
            left = request.take(report.committed, self._batch.p)
            for row, more in zip(self._batch.rows, left, strict=True):
                row.reason = row.reason if more else "length"
        return request.proposal()

    def commit(self, outcome: Outcome) -> None:
        """Take back what was refused, and take in what came instead."""
        rows = self._batch.rows
        if not any(row.tokens for row in rows):
            return  # nothing was drafted yet, and the first request brings all tokens
        kept = outcome.accepted if outcome.used else (0,) * len(outcome.accepted)
        self.rollback([row.begin + n for row, n in zip(rows, kept, strict=True)])
        new = tuple(tokens[n:] for tokens, n in zip(outcome.committed, kept, strict=True))
        for row, more in zip(rows, new, strict=True):
            row.tokens += more
            row.begin = len(row.tokens)
        nothing = (0,) * len(new)
        self._speculation.commit(Outcome(nothing, nothing, new, outcome.finished, used=False))

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget all but the first `lengths[b]` tokens of each row b, here and below."""
        self._batch.rollback(lengths)
        for row, length in zip(self._batch.rows, lengths, strict=True):
            row.begin = min(row.begin, length)

    def close(self) -> None:
        """Free the caches, here and below."""
        self._speculation.close()
        self._session.close()
