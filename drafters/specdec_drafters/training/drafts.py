"""Drafts of the text that a target sampled, from many positions at once: their loss and their acceptance."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from specdec_core.models import LoadedModel
from specdec_drafters.training.losses import Scores, cross_entropy, distillation
from specdec_drafters.training.rows import Rows, model_inputs


@dataclass(frozen=True)
class TargetReading:
    """The output of one target forward pass over a batch of sequences.

    Attributes:
        rows: The sequences x_0 ... x_(T - 1).
        states: `[B, T, D]`, what the drafter reads of each token.
        logits: `[B, T, V]`, after each token.
    """

    rows: Rows
    states: Tensor
    logits: Tensor

    @property
    def drafted(self) -> bool:
        """Whether any token is drafted: the first two are read before the first draft."""
        return self.rows.tokens.shape[1] > 2


@dataclass(frozen=True)
class DraftStep:
    """The drafts' tokens at one depth.

    Attributes:
        logits: `[N, W]`, of each draft that has a token to predict there, over the tokens that the drafter drafts.
        p_logits: `[N, V]`, the target's.
        tokens: `[N]` int64, the text's.
        where: `[B, L]` bool, the positions from which these drafts begin.
    """

    logits: Tensor
    p_logits: Tensor
    tokens: Tensor
    where: Tensor


@torch.no_grad()
def target_logits(target: LoadedModel, rows: Rows) -> Tensor:
    """Run the target over training sequences; return its logits after each token, `[B, T, V]`."""
    logits: Tensor = target.model(**model_inputs(target, rows, rows.tokens), use_cache=False).logits
    return logits[..., : target.vocab_size]


def draft_step(reading: TargetReading, depth: int, values: Tensor, head: Callable[[Tensor], Tensor]) -> DraftStep:
    """Return the drafts' tokens at a depth: the draft from position t predicts the token at t + 2 + depth there.

    As in decoding, the first token that the target sampled is read, not drafted.

    Args:
        reading: The sequences.
        depth: From 0.
        values: `[B, T - 1, D]`, what the logits of each draft are computed from.
        head: Computes them, `[N, W]` from `[N, D]`.
    """
    tokens, mask = reading.rows.tokens, reading.rows.mask
    where = pad(mask[:, 2 + depth :], (0, depth + 1)) & mask[:, 1:]
    rows, columns = where.nonzero(as_tuple=True)
    ahead = columns + depth + 2
    return DraftStep(head(values[rows, columns]), reading.logits[rows, ahead - 1], tokens[rows, ahead], where)


def drafts_loss(steps: Iterable[DraftStep], share: float | None, temperature: float, decay: float = 1.0) -> Tensor:
    """Return the mean loss of all tokens that drafts predict; near the end of a text, drafts are shorter.

    Args:
        steps: The depths of the drafts in turn, at least one.
        share: Share of total variation; see `training.losses.distillation`. None for cross-entropy on the text.
        temperature: Temperature of p and q.
        decay: Weight of a depth, relative to the one before.
    """
    losses, weight = [], 0.0
    for depth, step in enumerate(steps):
        if share is None:
            loss = cross_entropy(step.logits / temperature, step.tokens, mean=False)
        else:
            loss, _ = distillation(step.p_logits, step.logits, share, temperature)
        losses.append(decay**depth * loss)
        weight += decay**depth * len(step.tokens)
    return torch.stack(losses).sum() / max(1.0, weight)


@torch.inference_mode()
def draft_scores(steps: Iterable[DraftStep], count: int, temperature: float) -> Scores:
    """Return the acceptance of drafts at each depth, measured on text that the target sampled.

    A draft token x is accepted with probability min(1, p(x) / q(x)), so a position is accepted with probability
    sum_x min(p, q) = E_(x ~ p)[min(1, q(x) / p(x))], and the tokens of the text are such x. So the product of
    these ratios over the depths before, times the overlap at this one, has the probability that all of them are
    accepted as its mean.

    Args:
        steps: The depths of the drafts in turn, with logits over the target's vocabulary. A draft that has no
            token at one depth has none at the next.
        count: Length of the longest draft.
        temperature: Temperature of p and q.
    """
    sums = torch.zeros(4, count, dtype=torch.float64)
    reached = torch.ones(())
    for depth, step in enumerate(steps):
        p, q = ((part.float() / temperature).softmax(-1) for part in (step.p_logits, step.logits))
        reached = reached.to(p.device).expand(step.where.shape).clone()
        overlap = torch.minimum(p, q).sum(-1)
        agreement = p.argmax(-1) == q.argmax(-1)
        accepted = reached[step.where] * overlap
        found = torch.stack([torch.ones_like(overlap).sum(), overlap.sum(), agreement.sum(), accepted.sum()])
        sums[:, depth] = found.cpu()
        x = step.tokens[:, None]
        reached[step.where] *= (q.gather(1, x) / p.gather(1, x)).clamp(max=1)[:, 0]
    return Scores(*sums)
