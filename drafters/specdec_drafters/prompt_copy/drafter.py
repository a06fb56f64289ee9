"""The prompt-copy drafter: copies the continuation of an earlier match (prompt lookup)."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, TypeAlias

from specdec_core.interface import Drafter, DraftRequest, DraftSession, Proposal, SessionInfo
from specdec_drafters.prompt_copy.config import PromptCopyConfig
from specdec_drafters.prompt_copy.suffix_automaton import FrequentContinuations, LatestOccurrence, SuffixAutomaton

if TYPE_CHECKING:
    from collections.abc import Sequence

    _Match: TypeAlias = tuple[SuffixAutomaton, Sequence[int], tuple[int, int]]

# An enclosing loop may roll back its own draft and a little more; beyond this, a sequence is read again.
_SPARE_UNDO = 64


class PromptCopyDrafter(Drafter):
    """Finds the longest suffix of the sequence that occurred before and copies the tokens that followed it.

    It searches the prompt, the output and, for encoder-decoder targets, the source. Of equally long matches (at
    most `max_match` tokens are compared), those in prompt and output come first; `prefer` decides between the
    rest. q is a point mass. A tree has several copies, which begin with different tokens that followed this
    match or a shorter one, in the order of `prefer`.

    References:
        Section 3.6 of arXiv 2211.17192 (copying tokens from the context as a negligible-cost drafter). The paper
        leaves open how to find matches; here, suffix automata do, one per sequence and one per source.
    """

    drafts_trees = True

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch: one automaton per sequence and one per source."""
        return _PromptCopySession(self.config, session)


class _PromptCopySession(DraftSession):
    def __init__(self, config: PromptCopyConfig, session: SessionInfo) -> None:
        undo = session.max_gamma + _SPARE_UNDO
        self._config = config
        self._rows = [_automaton(config, undo) for _ in range(session.batch_size)]
        self._sources = [tuple(source) for source in session.sources or ()]
        self._source_automata = [_automaton(config, source=True) for _ in self._sources]
        for automaton, source in zip(self._source_automata, self._sources, strict=True):
            automaton.extend(source)

    def propose(self, request: DraftRequest) -> Proposal:
        if request.tree is not None:
            asked = enumerate(zip(request.tokens, request.budget, request.depth, strict=True))
            rows = [self._continuations(row, *one) for row, one in asked]
            return Proposal.from_continuations(rows, request.budget, request.depth)
        pairs = enumerate(zip(request.tokens, request.budget, strict=True))
        return Proposal.from_rows([self._draft(row, tokens, budget) for row, (tokens, budget) in pairs])

    def rollback(self, lengths: Sequence[int]) -> None:
        for automaton, length in zip(self._rows, lengths, strict=True):
            automaton.rollback(length)

    def _draft(self, row: int, tokens: Sequence[int], budget: int) -> Sequence[int]:
        budget = self._longest_copy(budget)
        if budget == 0:
            return ()
        automaton, text, match = self._matches(row, tokens)[0]
        return automaton.continuation(text, match, budget) if match[0] >= self._config.min_match else ()

    def _continuations(self, row: int, tokens: Sequence[int], budget: int, depth: int) -> list[Sequence[int]]:
        """Return as many copies as fill the budget, if there are; each begins with another token."""
        depth = self._longest_copy(min(budget, depth))
        if depth == 0:
            return []
        most, shortest = ceil(budget / depth), self._config.min_match
        found: dict[int, Sequence[int]] = {}
        for automaton, text, match in self._matches(row, tokens):
            for copy in automaton.continuations(text, match, depth, most, shortest):
                found.setdefault(copy[0], copy)
        return list(found.values())[:most]

    def _longest_copy(self, most: int) -> int:
        limit = self._config.max_tokens
        return most if limit is None else min(most, limit)

    def _matches(self, row: int, tokens: Sequence[int]) -> list[_Match]:
        """Return where to copy from, the best match first: in the row itself, and in its source."""
        # The automaton reads committed tokens here rather than in `commit`: by the next proposal they are at the
        # end of `tokens`, and a sequence that is never asked for a draft costs nothing.
        automaton = self._rows[row]
        automaton.extend(tokens)
        own = automaton.match()
        matches: list[_Match] = [(automaton, tokens, own)]
        if self._sources and own[0] < self._config.max_match:
            match = self._source_automata[row].locate(tokens)
            matches.insert(0 if match[0] > own[0] else 1, (self._source_automata[row], self._sources[row], match))
        return matches


def _automaton(config: PromptCopyConfig, undo: int = 0, *, source: bool = False) -> SuffixAutomaton:
    if config.prefer == "frequent":
        return FrequentContinuations(config.max_match, undo, min_match=config.min_match)
    return LatestOccurrence(config.max_match, undo, endless=not source)
