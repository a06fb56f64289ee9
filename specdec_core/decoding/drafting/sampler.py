"""The sampler that draws draft tokens from q."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from specdec_core.sampling.candidates import TemperedCandidates
from specdec_core.sampling.generators import invert


class DraftSampler:
    """Draws the tokens that a request records. A replay draws those of recorded texts instead."""

    def start(self, tokens: Sequence[Sequence[int]], budget: Sequence[int]) -> None:
        """Begin a step after the committed tokens of each sequence, with at most `budget[b]` draft tokens."""

    def draw(self, q: Tensor, uniforms: Callable[[], Tensor], position: int, left: Sequence[int]) -> Tensor:  # noqa: ARG002
        """Return a token `[B]` of each sequence, V where q is NaN: the result is nobody else's.

        Args:
            q: `[B, V]`, what it is drawn from.
            uniforms: Returns the random numbers of this position, `[B]`.
            position: Of the token in the draft.
            left: How many tokens each sequence may still take; the token of one with 0 is not used.
        """
        return invert(q, uniforms())[0]

    def draw_candidate(
        self,
        row: TemperedCandidates,
        uniform: float,
        index: int,  # noqa: ARG002
        position: int,  # noqa: ARG002
    ) -> tuple[int, float]:
        """Return a token of the sequence with this index, and its probability."""
        return row.draw(uniform)

    def told(self, token: int, index: int, position: int) -> int:  # noqa: ARG002
        """Return the token that a drafter is told it drew, where the record has this one."""
        return token

    def all_told(self, tokens: Tensor, position: int) -> Tensor:  # noqa: ARG002
        """Return the same for all sequences, `[B]`."""
        return tokens

    def fork(self) -> DraftSampler:
        """Return a sampler for a fork of the request."""
        return self
