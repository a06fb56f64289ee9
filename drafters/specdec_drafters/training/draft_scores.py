"""Acceptance of drafts of several tokens on text that the target sampled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """Acceptance at each depth of a draft, summed over positions; the sums of several readings add up.

    Depth i is that of head i, or of the i-th token that a head drafts.

    Attributes:
        positions: `[k]`, number of positions at which there was a token to predict at each depth.
        overlap: `[k]`, the sum of sum_x min(p(x), q_i(x)).
        agreement: `[k]`, how often p and q_i have the same argmax.
        accepted: `[k]`, the sum of the probability that the tokens at depths 1 ... i are all accepted.
    """

    positions: Tensor
    overlap: Tensor
    agreement: Tensor
    accepted: Tensor

    def __add__(self, other: Scores) -> Scores:
        return Scores(
            self.positions + other.positions,
            self.overlap + other.overlap,
            self.agreement + other.agreement,
            self.accepted + other.accepted,
        )

    @property
    def alpha(self) -> list[float]:
        """Corollary 3.6 at each depth: E(sum_x min(p, q_i)); of arXiv 2211.17192."""
        return (self.overlap / self.positions.clamp(min=1)).tolist()

    @property
    def greedy_alpha(self) -> list[float]:
        """How often the token at each depth is the target's argmax."""
        return (self.agreement / self.positions.clamp(min=1)).tolist()

    @property
    def acceptance_by_position(self) -> list[float]:
        """The probability that the tokens at depths 1 ... i are all accepted, for each i."""
        return (self.accepted / self.positions.clamp(min=1)).tolist()

    @property
    def block_efficiency(self) -> float:
        """Expected tokens per target forward pass with drafts of k tokens: 1 plus the accepted draft tokens."""
        return 1 + sum(self.acceptance_by_position)

    @property
    def run_alpha(self) -> float:
        """The accepted share of the verified tokens with drafts of k tokens: the acceptance rate that a run shows.

        Depth i is verified if all depths before it were accepted.
        """
        accepted = self.acceptance_by_position
        return sum(accepted) / (1 + sum(accepted[:-1]))

    def point(self) -> dict[str, float]:
        """Return the values for a point of the learning curve: over all depths, and at each."""
        values = {"alpha": self.run_alpha, "block_efficiency": self.block_efficiency}
        for name, each in (("alpha", self.alpha), ("greedy_alpha", self.greedy_alpha)):
            values |= {f"{name}_{depth}": value for depth, value in enumerate(each, start=1)}
        return values


def depth_scores(p: Tensor, q: Tensor, tokens: Tensor, counts: Tensor, reached: Tensor) -> tuple[Tensor, Tensor]:
    """Return the acceptance at one depth of drafts, measured on text that the target sampled.

    A draft token x is accepted with probability min(1, p(x) / q(x)), so a position is accepted with probability
    sum_x min(p, q) = E_(x ~ p)[min(1, q(x) / p(x))], and the tokens of the text are such x. So the product of
    these ratios over the depths before, times the overlap at this one, has the probability that all of them are
    accepted as its mean.

    Args:
        p: `[N, V]`, the target's distributions.
        q: `[N, V]`, the drafter's.
        tokens: `[N]` int64, the tokens of the text.
        counts: `[N]` bool, where there is a token to predict.
        reached: `[N]`, the product of the ratios at the depths before.

    Returns:
        The sums of `Scores` at this depth, `[4]`; the ratio of each token, `[N]`.
    """
    overlap = torch.minimum(p, q).sum(-1) * counts
    agreement = (p.argmax(-1) == q.argmax(-1)) & counts
    x = tokens[:, None]
    ratio = (q.gather(1, x) / p.gather(1, x)).clamp(max=1)[:, 0]
    return torch.stack([counts.sum(), overlap.sum(), agreement.sum(), (reached * overlap).sum()]), ratio
