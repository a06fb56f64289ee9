"""The suffix drafter: continues the longest match in the request itself and in earlier ones (suffix decoding)."""

from collections.abc import Sequence
from threading import Lock

from specdec_core.interface import Drafter, DraftRequest, DraftSession, Proposal, SessionInfo, TargetInfo
from specdec_drafters.common.retrieval import GrowingText, RetrievalSession, TokenIndex
from specdec_drafters.settings import SuffixConfig

_SHARE = 16
"""Indexes of at most one in this many of the kept requests are merged, so up to twice that are dropped at once."""


class SuffixDrafter(Drafter):
    """Continues the longest suffix of the sequence that occurred before, as it was continued most often.

    It searches prompt and output, the source of encoder-decoder targets, and earlier requests. A session searches
    the requests that had ended when it was opened; its own are added when it is closed. q is a point mass.

    `max_cached_requests`, `max_spec_factor` and `min_token_prob` mean what they mean in vLLM with
    `suffix_decoding_` before them. There `max_tree_depth` limits match and draft together, here `max_match` limits
    the match.

    References:
        Section 3 of arXiv 2411.04975 (SuffixDecoding). There, each match length is scored and the best one used,
        the request's own tree or that of earlier outputs; here the longest match is, and all of its occurrences
        count. Prompts of earlier requests are searched as well.
    """

    config: SuffixConfig
    drafts_trees = True

    def __init__(self, config: SuffixConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.remembers = config.max_cached_requests > 0
        self._lock = Lock()
        # The earlier requests, oldest first. The tuple is replaced, never changed: sessions keep the one they saw.
        self._earlier: tuple[TokenIndex, ...] = ()

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch, with the requests that have ended by now."""
        return _SuffixSession(self, session, self._earlier)

    def reset(self) -> None:
        """Forget the earlier requests."""
        with self._lock:
            self._earlier = ()

    def learn(self, texts: Sequence[Sequence[int]]) -> None:
        """Add requests that have ended, and drop the oldest ones.

        Args:
            texts: The tokens of each, prompt first.
        """
        most = self.config.max_cached_requests
        texts = texts[len(texts) - min(most, len(texts)) :]
        if not texts:
            return
        new = TokenIndex.of(texts, self.config.max_match)
        with self._lock:
            earlier = [*self._earlier, new]
            # Equal sizes are merged, so that there are few indexes and a request is rarely indexed again.
            while len(earlier) > 1 and earlier[-2].texts <= earlier[-1].texts <= most // _SHARE:
                earlier[-2:] = [earlier[-2].merged(earlier[-1])]
            while sum(part.texts for part in earlier) > most:
                del earlier[0]
            self._earlier = tuple(earlier)


class _SuffixSession(RetrievalSession):
    def __init__(self, drafter: SuffixDrafter, session: SessionInfo, earlier: Sequence[TokenIndex]) -> None:
        longest = drafter.config.max_match
        self._drafter = drafter
        self._tokens: Sequence[Sequence[int]] = ()
        self._texts = [GrowingText(longest=longest) for _ in range(session.batch_size)]
        sources = [()] * session.batch_size if session.sources is None else session.sources
        indexes = [(TokenIndex.of([source], longest),) if source else () for source in sources]
        pairs = zip(self._texts, indexes, strict=True)
        super().__init__(drafter.config, [(text, *source, *reversed(earlier)) for text, source in pairs])

    def propose(self, request: DraftRequest) -> Proposal:
        self._tokens = request.tokens  # they grow with the sequences
        return super().propose(request)

    def rollback(self, lengths: Sequence[int]) -> None:
        for text, length in zip(self._texts, lengths, strict=True):
            text.rollback(length)

    def close(self) -> None:
        tokens, self._tokens = self._tokens, ()
        self._drafter.learn([row[:] for row in tokens])
