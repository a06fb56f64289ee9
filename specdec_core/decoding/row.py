"""A sequence while it is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_core.decoding.stopping import FinishReason


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
        """Number of tokens that may be drafted: one is left for the recovered or bonus token."""
        return 0 if self.reason else self.limit - len(self.tokens) - 1
