"""Proposals of drafters: draft tokens and the distribution q that each was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from specdec_core.interface.errors import shortened

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True)
class PointMass:
    """q puts all its mass on the draft token, as a deterministic drafter's does."""


@dataclass(frozen=True)
class Sparse:
    """q on a few ids, zero elsewhere.

    Attributes:
        ids: `[B, K, S]` int64, no id twice at a position. Pad unused entries with any listed id and probability 0.
        probabilities: `[B, K, S]` float, summing to 1 at each drafted position.
    """

    ids: Tensor
    probabilities: Tensor


@dataclass(frozen=True)
class Dense:
    """q on the whole vocabulary.

    Attributes:
        probabilities: `[B, K, V]` float, summing to 1 at each drafted position.
    """

    probabilities: Tensor


Distribution: TypeAlias = PointMass | Sparse | Dense
"""The three forms of q."""


@dataclass(frozen=True)
class ProposalOrigin:
    """What the core knows of a proposal that it made.

    Attributes:
        step: The step in which it drew all tokens from logits; None if it did not.
        lengths: `Proposal.lengths` on the device, `[B]` int64. Replays of a captured step differ in them.
        captured: Whether the tensors are outputs of a captured draft: each replay writes to the same memory.
    """

    step: object = None
    lengths: Tensor | None = None
    captured: bool = False


@dataclass(frozen=True)
class Proposal:
    """The draft of one step for a batch of B sequences. Sequences may differ in length and may be empty.

    It holds new tokens only, never the prefix. Everything beyond a sequence's length is ignored.

    Attributes:
        tokens: `[B, K]` int64, the draft tokens x_1 ... x_gamma of Algorithm 1 (arXiv 2211.17192).
        lengths: B numbers from 0 to K: the number of draft tokens of each sequence.
        q: The distribution the tokens were sampled from, after the sampling settings (section 2.2).
        parents: `[B, K]` int64 for a token tree: the number of each token's parent in its row, which comes before
            it, or -1 for a token that follows the committed ones. None for a line, in which each token follows
            the one before it. The q of a node is that of its draw, given its earlier siblings: the same for all
            siblings drawn with replacement; without the earlier ones, normalized, for those drawn without.
    """

    tokens: Tensor
    lengths: tuple[int, ...]
    q: Distribution
    parents: Tensor | None = None
    origin: ProposalOrigin = field(default=ProposalOrigin(), init=False, repr=False, compare=False)
    """Set by the core where it made the proposal; not for drafters."""

    def made_by_core(self, origin: ProposalOrigin) -> Proposal:
        """Return the same proposal, of an origin."""
        made = object.__new__(Proposal)
        made.__dict__.update(self.__dict__, origin=origin)
        return made

    def shortened(self, lengths: Sequence[int]) -> Proposal:
        """Return the same proposal with shorter drafts.

        The core checks the values of what it drew less than those of another proposal; this keeps it recognizable,
        as `dataclasses.replace` does not.

        Args:
            lengths: B numbers, each at most that of the sequence now.
        """
        return replace(self, lengths=tuple(lengths)).made_by_core(ProposalOrigin(step=self.origin.step))

    @property
    def longest(self) -> int:
        """The length of the longest draft."""
        return max(self.lengths, default=0)

    @classmethod
    def empty(cls, batch_size: int, device: torch.device | str = "cpu") -> Proposal:
        """Return a proposal without tokens: a step of plain decoding."""
        import torch

        return cls(torch.zeros(batch_size, 0, dtype=torch.long, device=device), (0,) * batch_size, PointMass())

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> Proposal:
        """Return the proposal of a deterministic drafter: a list of tokens per sequence, q a point mass.

        Args:
            rows: B sequences of token ids, of any lengths.

        Raises:
            TypeError: An id is not an integer of at most 64 bits, or a row is not a sequence.
        """
        import torch

        lengths = tuple(len(row) for row in rows)
        longest = max(lengths, default=0)
        padded = [[*row, *[0] * (longest - len(row))] for row in rows]
        try:
            tokens = torch.tensor(padded)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"rows are sequences of token ids; given {shortened(repr(rows))}.") from error
        if longest and tokens.ndim != 2:
            raise TypeError("rows are sequences of token ids; given nested ones.")
        kind = torch.bool if any(isinstance(token, bool) for row in rows for token in row) else tokens.dtype
        if longest and (kind == torch.bool or kind.is_floating_point or kind.is_complex):
            raise TypeError(f"token ids are integers; given {str(kind).removeprefix('torch.')}.")
        return cls(tokens.long().view(len(rows), longest), lengths, PointMass())

    @classmethod
    def from_continuations(
        cls, rows: Sequence[Sequence[Sequence[int]]], budget: Sequence[int], depth: Sequence[int]
    ) -> Proposal:
        """Return the tree of a deterministic drafter that has several continuations; q is a point mass.

        Continuations that begin alike share their first nodes. Those that come first are kept where the budget
        does not suffice.

        Args:
            rows: For each of B sequences, its continuations, the most likely first.
            budget: The maximum number of nodes of each sequence.
            depth: The maximum length of a path of each sequence; what is longer is cut.

        Raises:
            TypeError: An id is not an integer, or a row is not a sequence of sequences.
        """
        import torch

        made = [_trie(*row) for row in zip(rows, budget, depth, strict=True)]
        line = cls.from_rows([tokens for tokens, _ in made])
        width = line.tokens.shape[1]
        parents = [[*row, *[-1] * (width - len(row))] for _, row in made]
        return cls(line.tokens, line.lengths, line.q, torch.tensor(parents).long().view(len(rows), width))


def _trie(continuations: Sequence[Sequence[int]], budget: int, depth: int) -> tuple[list[int], list[int]]:
    """Return the tokens of a tree of continuations, and the parent of each."""
    nodes: dict[tuple[int, int], int] = {}  # by parent and token
    for continuation in continuations:
        parent = -1
        for token in continuation[:depth]:
            if (parent, token) not in nodes and len(nodes) >= budget:
                break
            parent = nodes.setdefault((parent, token), len(nodes))
    return [token for _, token in nodes], [parent for parent, _ in nodes]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Log weights of the few tokens that may be drafted next; all others have probability 0.

    They need not sum to 1; the core normalizes them. A row that is passed again is drawn from faster, since
    derived values are cached with it: keep rows that recur.

    Attributes:
        ids: `[S]` int, ascending, no id twice, at least one. Do not modify.
        log_weights: `[S]` float, on any scale. Do not modify.
        prepared: Cache of the core; not for drafters.
    """

    ids: NDArray[np.integer]
    log_weights: NDArray[np.floating]
    prepared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
