"""Drafters whose q is not what their tokens were sampled from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specdec_core.interface import Dense, DraftRequest, Proposal
from tests.testing.defects.healthy import Sampling


class UnwarpedQ(Sampling):
    """Tokens are drawn with temperature and top-k, q is the softmax of the raw logits.

    Seen in the transformers library (issues #32867 and #47932), in vLLM (#40149, #41044).
    """

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        return replace(made, q=Dense(torch.softmax(logits, dim=-1)))


class RawLogits(Sampling):
    """q is filled with logits, which are no probabilities.

    Seen in the transformers library: candidate generators return logits, labeled neither raw nor processed.
    """

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        return replace(made, q=Dense(logits))


class ArgmaxWithSoftmax(Sampling):
    """Drafts the argmax of q and reports the softmax as q.

    Seen in the transformers library 5.23, whose single-position multi-token generator drafts so, and in a small
    project that accepts greedy drafts by the ratio of softmaxes.
    """

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        probabilities = torch.softmax(logits, dim=-1)
        return Proposal(probabilities.argmax(dim=-1), made.lengths, Dense(probabilities))


class OnePositionOff(Sampling):
    """q stands one position too late: each token comes with the q of the token before it.

    Seen wherever logits at position n, which predict token n + 1, are stored at n.
    """

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        if not isinstance(made.q, Dense):
            return made
        return replace(made, q=Dense(made.q.probabilities.roll(1, dims=1)))


class OneBuffer(Sampling):
    """Every position holds the same buffer, which was written over: all have the q of the last token.

    Seen where rows of a preallocated buffer are views, and not copies.
    """

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        if not isinstance(made.q, Dense):
            return made
        last = made.q.probabilities[:, -1:]
        return replace(made, q=Dense(last.expand_as(made.q.probabilities)))


class NotNormalized(Sampling):
    """The least probable half of q is cut away, and the rest is not renormalized.

    Seen in hand-written top-k and nucleus filters.
    """

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        probabilities = torch.softmax(logits, dim=-1)
        middle = probabilities.median(dim=-1, keepdim=True).values
        return replace(made, q=Dense(torch.where(probabilities >= middle, probabilities, 0)))


class ZeroAtTheDraft(Sampling):
    """q was cut to its two most probable tokens after the draw, and so gives 0 to other tokens that were drawn.

    Seen where draft and verification apply filters of their own.
    """

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        probabilities = torch.softmax(logits, dim=-1)
        least = probabilities.topk(2, dim=-1).values[..., -1:]
        kept = torch.where(probabilities >= least, probabilities, 0)
        return replace(made, q=Dense(kept / kept.sum(dim=-1, keepdim=True)))


class WithholdsEndOfSequence(Sampling):
    """Cuts a draft in front of a drawn end of sequence, so that what is drafted was not drawn from q any more.

    Seen in drafters that "do not bother the target" with the end.
    """

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        rows = [row[:n] for row, n in zip(made.tokens.tolist(), made.lengths, strict=True)]
        ends = self.target.eos_ids
        lengths = [next((n for n, token in enumerate(row) if token in ends), len(row)) for row in rows]
        return replace(made, lengths=tuple(lengths))


class LeavesOutTheUnsure(Sampling):
    """Leaves out the token at which a controller stopped the draft, for want of confidence in it.

    Seen where a confidence threshold is applied to the token itself, and not to those after it.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        made = super().propose(request)
        rows = zip(made.lengths, request.budget, strict=True)
        return replace(made, lengths=tuple(n - (0 < n < budget) for n, budget in rows))


class ExpectsProbabilities(Sampling):
    """Reads the probabilities of its own q, and fails when q is a point mass.

    Seen where greedy decoding is an untested special case.
    """

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        if self.calls > 3:
            self.confidence = made.q.probabilities.amax()  # type: ignore[union-attr]
        self.calls += 1
        return made

    calls = 0


class CherryPicks(Sampling):
    """Draws two drafts for each row, and hands back the one that it finds more probable: that is no draw from q.

    Seen where the best of several candidates is verified by a rule that is exact for one.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        first, second = (super(CherryPicks, self).propose(request.fork(request.budget)) for _ in range(2))
        if not (isinstance(first.q, Dense) and isinstance(second.q, Dense) and first.lengths == second.lengths):
            return first
        better = (_probability(second) > _probability(first))[:, None]
        q = torch.where(better[..., None], second.q.probabilities, first.q.probabilities)
        return replace(first, tokens=torch.where(better, second.tokens, first.tokens), q=Dense(q))


def _probability(made: Proposal) -> Tensor:
    """Return q of each row's whole draft, `[B]`."""
    assert isinstance(made.q, Dense)
    return made.q.probabilities.gather(2, made.tokens[..., None])[..., 0].prod(dim=1)


class FirstRowsQ(Sampling):
    """The first token of every row comes with the q of the first row.

    Seen where one forward over the shared prompt is broadcast to a batch.
    """

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        if not isinstance(made.q, Dense):
            return made
        q = made.q.probabilities.clone()
        q[:, 0] = q[0, 0].clone()
        return replace(made, q=Dense(q))


class SureOfLongTexts(Sampling):
    """Behind more than ten tokens of text, q says that what was drawn was likelier than it was."""

    def propose(self, request: DraftRequest) -> Proposal:
        made = super().propose(request)
        return _surer(made, [len(row) > 10 for row in request.tokens])


class SureBehindAnEncoder(Sampling):
    """With an encoder and where tokens are cut off, q says that what was drawn was likelier than it was."""

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        cut = isinstance(made.q, Dense) and bool((made.q.probabilities == 0).any())
        return _surer(made, [cut and self.target.encoder_decoder] * len(made.lengths))


class LeavesOutBehindAnEncoder(LeavesOutTheUnsure):
    """Leaves out the token at which a controller stopped the draft, on targets with an encoder only."""

    def propose(self, request: DraftRequest) -> Proposal:
        return super().propose(request) if self.target.encoder_decoder else Sampling.propose(self, request)


def _surer(made: Proposal, rows: Sequence[bool]) -> Proposal:
    """Return a proposal whose q is mixed with what was drawn, in some rows."""
    if not isinstance(made.q, Dense) or not any(rows):
        return made
    q = made.q.probabilities
    mixed = (q + torch.nn.functional.one_hot(made.tokens, q.shape[-1])) / 2
    return replace(made, q=Dense(torch.where(torch.tensor(rows)[:, None, None], mixed, q)))
