"""The prompt-copy drafter: what followed these tokens the last time follows them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.border import Drafter, DraftRequest, DraftSession, Proposal, SessionInfo
from specdec_drafters.configs import PromptCopyConfig

if TYPE_CHECKING:
    from collections.abc import Sequence


class PromptCopyDrafter(Drafter):
    """Finds the longest end of the sequence that occurred before and copies what came after it.

    Searched are prompt and output and, for encoder-decoder targets, the source. Of several places that agree
    in equally many tokens the output's come before the source's, and later ones before earlier ones. q is a
    point mass.

    References:
        Section 3.6 of arXiv 2211.17192 (copying tokens from the context as a negligible-cost drafter).
    """

    Config = PromptCopyConfig

    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch: each row gets an index of its own, of the tokens it commits."""
        return _PromptCopySession(self.config, session)


class NgramIndex:
    """Where each n-gram of a growing sequence was last followed by a token, for n in a range.

    Appending a token enters `longest - shortest + 1` n-grams and a search looks as many up, whatever the
    length of the sequence; memory grows with the tokens alone.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._followed_at: dict[tuple[int, ...], int] = {}
        self._length = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what `tokens` holds beyond the part that is indexed already.

        An n-gram is entered when the token after it is known, so the end of a sequence never finds itself.
        """
        for position in range(max(self._length, 1), len(tokens)):
            window = tuple(tokens[max(0, position - self._sizes[0]) : position])
            for size in self._sizes:
                if size <= len(window):
                    self._followed_at[window[-size:]] = position
        self._length = max(self._length, len(tokens))

    def search(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return (n, position) of what followed the longest indexed end of `tokens`, or (0, 0)."""
        end = tuple(tokens[-self._sizes[0] :])
        for size in self._sizes:
            if size <= len(end):
                position = self._followed_at.get(end[-size:])
                if position is not None:
                    return size, position
        return 0, 0


class _PromptCopySession(DraftSession):
    def __init__(self, config: PromptCopyConfig, session: SessionInfo) -> None:
        def new_index() -> NgramIndex:
            return NgramIndex(config.min_match, config.max_match)

        self._max_tokens = config.max_tokens
        self._indices = [new_index() for _ in range(session.batch_size)]
        self._sources = [tuple(source) for source in session.sources or ()]
        self._source_indices = [new_index() for _ in self._sources]
        for index, source in zip(self._source_indices, self._sources, strict=True):
            index.extend(source)

    def propose(self, request: DraftRequest) -> Proposal:
        pairs = enumerate(zip(request.tokens, request.budget, strict=True))
        return Proposal.from_rows([self._draft(row, tokens, budget) for row, (tokens, budget) in pairs])

    def _draft(self, row: int, tokens: Sequence[int], budget: int) -> Sequence[int]:
        if self._max_tokens is not None:
            budget = min(budget, self._max_tokens)
        if budget == 0:
            return ()
        # The index follows the committed tokens here rather than in `commit`: what a step commits is at the
        # end of `tokens` by the time of the next proposal, and a row that is never asked costs nothing.
        index = self._indices[row]
        index.extend(tokens)
        size, position = index.search(tokens)
        if self._sources:
            source_size, source_position = self._source_indices[row].search(tokens)
            if source_size > size:
                return self._sources[row][source_position : source_position + budget]
        return copy_from(tokens, position, budget) if size else ()


def copy_from(tokens: Sequence[int], position: int, count: int) -> list[int]:
    """Return `count` tokens from `position` on; past the end of `tokens` the copy goes on in itself.

    So a sequence that has begun to repeat itself is continued for as long as is asked.
    """
    copied = list(tokens[position : position + count])
    period = len(tokens) - position
    while len(copied) < count:
        copied.append(copied[-period])
    return copied
