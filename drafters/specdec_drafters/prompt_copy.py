"""The prompt-copy drafter: what followed these tokens before follows them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.border import Drafter, DraftRequest, DraftSession, Proposal, SessionInfo
from specdec_drafters.configs import PromptCopyConfig
from specdec_drafters.suffix_automaton import FrequentContinuations, LatestPlaces, SuffixAutomaton

if TYPE_CHECKING:
    from collections.abc import Sequence

# A loop around this one may take back its own draft and a little more; beyond this a row is read anew.
_SPARE_UNDO = 64


class PromptCopyDrafter(Drafter):
    """Finds the longest end of the sequence that occurred before and copies what came after it.

    Searched are prompt and output and, for encoder-decoder targets, the source. Of several places that agree
    in equally many tokens (at most `max_match` are compared) the output's come before the source's; among those,
    `prefer` decides. q is a point mass.

    References:
        Section 3.6 of arXiv 2211.17192 (copying tokens from the context as a negligible-cost drafter). The paper
        leaves open how places are found; here it is by suffix automata, one a row and one a source.
    """

    Config = PromptCopyConfig

    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch: each row gets an automaton of the tokens it commits, each source one of its own."""
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
        pairs = enumerate(zip(request.tokens, request.budget, strict=True))
        return Proposal.from_rows([self._draft(row, tokens, budget) for row, (tokens, budget) in pairs])

    def rollback(self, lengths: Sequence[int]) -> None:
        for automaton, length in zip(self._rows, lengths, strict=True):
            automaton.rollback(length)

    def _draft(self, row: int, tokens: Sequence[int], budget: int) -> Sequence[int]:
        config = self._config
        if config.max_tokens is not None:
            budget = min(budget, config.max_tokens)
        if budget == 0:
            return ()
        # The automaton follows the committed tokens here rather than in `commit`: what a step commits is at the
        # end of `tokens` by the time of the next proposal, and a row that is never asked costs nothing.
        automaton = self._rows[row]
        automaton.extend(tokens)
        match = automaton.match()
        if self._sources and match[0] < config.max_match:
            source_match = self._source_automata[row].locate(tokens)
            if source_match[0] > match[0]:
                automaton, tokens, match = self._source_automata[row], self._sources[row], source_match
        return automaton.continuation(tokens, match, budget) if match[0] >= config.min_match else ()


def _automaton(config: PromptCopyConfig, undo: int = 0, *, source: bool = False) -> SuffixAutomaton:
    if config.prefer == "frequent":
        return FrequentContinuations(config.max_match, undo, shortest=config.min_match)
    return LatestPlaces(config.max_match, undo, endless=not source)
