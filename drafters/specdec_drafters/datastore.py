"""The datastore drafter: continues the longest match in a corpus (retrieval, as REST)."""

import numpy as np
from numpy.typing import NDArray

from specdec_core.interface import Drafter, DraftSession, SessionInfo, TargetInfo
from specdec_core.interface.files import input_path
from specdec_drafters.common.retrieval import RetrievalSession, TokenIndex
from specdec_drafters.common.texts import check_ids, read_ids, target_documents
from specdec_drafters.settings import DatastoreConfig


class DatastoreDrafter(Drafter):
    """Continues the longest suffix of the sequence that occurs in a corpus, as it is continued there most often.

    The corpus is indexed when the drafter is made, and never changes. A tree has the most frequent continuations.
    q is a point mass.

    References:
        Section 3 of arXiv 2311.08252 (REST: a datastore, searched by a suffix array, and a tree of the most
        frequent continuations). There, the length of a draft is fixed; here it grows with the match, by
        `max_spec_factor`.
    """

    drafts_trees = True

    def __init__(self, config: DatastoreConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        texts = _corpus(config, target)
        check_ids(texts, target.vocab_size)
        self._index = TokenIndex.of(texts, config.max_match)

    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch; nothing is kept between steps."""
        return RetrievalSession(self.config, [(self._index,)] * session.batch_size)


def _corpus(config: DatastoreConfig, target: TargetInfo) -> list[NDArray[np.int32]]:
    if config.ids is not None:
        return read_ids(input_path(config.ids, target.folder))
    assert config.text is not None, "the config checks that one is given"
    return target_documents("datastore", config.text, config.max_bytes, target)
