"""What a drafter hands back: draft tokens and the distribution each was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class PointMass:
    """q puts all its mass on the drafted token: what a deterministic drafter draws from."""


@dataclass(frozen=True)
class Sparse:
    """q is given on a few ids and is zero elsewhere.

    Attributes:
        ids: `[B, K, S]` int64, no id twice at a position. Unused places repeat an id with probability 0.
        probabilities: `[B, K, S]` float, sum to 1 at each drafted position.
    """

    ids: Tensor
    probabilities: Tensor


@dataclass(frozen=True)
class Dense:
    """q is given on the whole vocabulary.

    Attributes:
        probabilities: `[B, K, V]` float, sum to 1 at each drafted position.
    """

    probabilities: Tensor


@dataclass(frozen=True)
class Overlay:
    """q is given on a few ids, and on all others by a background that every position shares.

    At position k of row b, q(w) is `probabilities[b, k, s]` where `ids[b, k, s]` is w, and
    `scale[b, k] * background[w]` for ids that are not listed.

    Attributes:
        ids: `[B, K, S]` int32 or int64, ascending at each position. Unused places repeat the last id with its
            probability; where nothing is to be listed, they hold any id with the probability it has anyway. S may
            be 0.
        probabilities: `[B, K, S]` float.
        background: `[V]` float, not negative.
        scale: `[B, K]` float. All in all q sums to 1 at each drafted position.
    """

    ids: Tensor
    probabilities: Tensor
    background: Tensor
    scale: Tensor


Distribution: TypeAlias = PointMass | Sparse | Dense | Overlay
"""The four forms of q: what the tokens of a proposal were drawn from."""


@dataclass(frozen=True)
class Proposal:
    """The draft of one step for a batch of B rows; rows may differ in length and may be empty.

    Only new tokens are in it, never the prefix. What lies beyond a row's length is ignored.

    Attributes:
        tokens: `[B, K]` int64, the draft tokens x_1 ... x_gamma of Algorithm 1 (arXiv 2211.17192).
        lengths: B numbers in 0..K: how many tokens of each row are meant.
        q: The distribution the tokens were sampled from, after standardisation (section 2.2).
        parents: Reserved for token trees; None means that each token follows the one before it.
    """

    tokens: Tensor
    lengths: tuple[int, ...]
    q: Distribution
    parents: Tensor | None = None

    @property
    def longest(self) -> int:
        """The length of the longest row."""
        return max(self.lengths, default=0)

    @classmethod
    def empty(cls, batch_size: int, device: torch.device | str = "cpu") -> Proposal:
        """Return a proposal without a token: a step of plain decoding."""
        import torch

        return cls(torch.zeros(batch_size, 0, dtype=torch.long, device=device), (0,) * batch_size, PointMass())

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> Proposal:
        """Return the proposal of a deterministic drafter: one list of tokens a row, q a point mass.

        Args:
            rows: B sequences of token ids, of any lengths.
        """
        import torch

        lengths = tuple(len(row) for row in rows)
        longest = max(lengths, default=0)
        padded = [[*row, *[0] * (longest - len(row))] for row in rows]
        tokens = torch.tensor(padded, dtype=torch.long).view(len(rows), longest)
        return cls(tokens, lengths, PointMass())
