"""Acceptance of drafts of several tokens on text that the target sampled."""

from __future__ import annotations

from dataclasses import dataclass

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
