"""The prompt-copy drafter: copies the continuation of an earlier match (prompt lookup)."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_core.interface import Drafter, DraftRequest, DraftSession, Proposal, SessionInfo
from specdec_drafters.common.retrieval import MAX_OCCURRENCES, GrowingText
from specdec_drafters.settings import PromptCopyConfig


class PromptCopyDrafter(Drafter):
    """Finds the longest suffix of the sequence that occurred before and copies the tokens that followed it.

    It searches the prompt, the output and, for encoder-decoder targets, the source. Of equally long matches (at
    most `max_match` tokens are compared), those in prompt and output come first; `prefer` decides between the
    rest. A copy has at most `max_spec_factor` tokens for each that matches. q is a point mass. A tree has several
    copies, which begin with different tokens that followed this match or a shorter one, in the order of `prefer`.

    References:
        Section 3.6 of arXiv 2211.17192 (copying tokens from the context as a negligible-cost drafter).
    """

    drafts_trees = True

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch."""
        return _PromptCopySession(self.config, session)


class _PromptCopySession(DraftSession):
    def __init__(self, config: PromptCopyConfig, session: SessionInfo) -> None:
        self._config = config
        self._rows = [GrowingText() for _ in range(session.batch_size)]
        self._sources = [GrowingText(source) for source in session.sources or ()]

    def propose(self, request: DraftRequest) -> Proposal:
        asked = zip(request.tokens, request.budget, request.depth, strict=True)
        rows = [self._copies(row, *each) for row, each in enumerate(asked)]
        if request.tree is not None:
            return Proposal.from_continuations([list(copies) for copies in rows], request.budget, request.depth)
        return Proposal.from_rows([next(copies, []) for copies in rows])

    def rollback(self, lengths: Sequence[int]) -> None:
        for text, length in zip(self._rows, lengths, strict=True):
            text.rollback(length)

    def _copies(self, row: int, tokens: Sequence[int], budget: int, depth: int) -> Iterator[list[int]]:
        """Yield as many copies as fill the budget, if there are; each begins with another token.

        Args:
            row: The number of the sequence.
            tokens: The sequence.
            budget: The most tokens of all copies together.
            depth: The most tokens of a copy.
        """
        config = self._config
        if min(budget, depth) == 0:
            return
        own = self._rows[row]
        own.read(tokens)
        end = list(tokens[-config.max_match :])
        texts = [own, self._sources[row]] if self._sources else [own]
        matches = [(text, text.occurrences(end)) for text in texts]
        matches.sort(key=lambda one: len(one[1]), reverse=True)  # stable: of equal ones, the row's own comes first
        begun: set[int] = set()
        for text, by_length in matches:
            for size in range(len(by_length), config.min_match - 1, -1):
                longest = min(budget, depth, int(size * config.max_spec_factor))
                for copy in self._copied(text, end, by_length[size - 1], longest, endless=text is own):
                    if copy[0] not in begun:
                        begun.add(copy[0])
                        yield copy
                        budget -= len(copy)
                    if budget <= 0:
                        return

    def _copied(
        self, text: GrowingText, end: list[int], positions: NDArray[np.int64], count: int, *, endless: bool
    ) -> Iterator[list[int]]:
        """Yield a copy for each token that followed a match, in the order of `prefer`.

        Args:
            text: Where to copy from.
            end: The end of the sequence, which matches.
            positions: `[N]`, the positions after the matches, the latest first.
            count: The most tokens of a copy.
            endless: Whether a copy that reaches the end of the text continues with itself.
        """
        if self._config.prefer == "frequent":
            for token in _most_frequent_first(text, positions):
                yield [token, *self._frequent(text, [*end, token], count - 1)]
        else:
            for position in positions[:MAX_OCCURRENCES].tolist():
                yield text.copy(position, count, endless=endless)

    def _frequent(self, text: GrowingText, end: list[int], count: int) -> list[int]:
        """Return at most `count` tokens, each the most frequent one after the longest match by then."""
        config = self._config
        copied: list[int] = []
        while len(copied) < count:
            found = text.occurrences([*end, *copied][-config.max_match :])
            if len(found) < config.min_match:
                break
            copied.append(_most_frequent_first(text, found[-1])[0])
        return copied


def _most_frequent_first(text: GrowingText, positions: NDArray[np.int64]) -> list[int]:
    """Return the tokens at some positions, the most frequent first; equal ones keep their order."""
    counts = Counter(text.following(positions[:MAX_OCCURRENCES], 1)[:, 0].tolist())
    return [token for token, _ in counts.most_common()]
