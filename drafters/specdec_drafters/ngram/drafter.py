"""The n-gram drafter: the usual continuations of the last few tokens, from an ARPA file, a text or KenLM."""

from typing import Any

import torch
from torch import Tensor

from specdec_core.interface import Drafter, DraftRequest, DraftSession, Proposal, SessionInfo, TargetInfo
from specdec_core.interface.base_drafters import draw_tree
from specdec_drafters.common.texts import target_documents
from specdec_drafters.ngram.arpa import read_arpa
from specdec_drafters.ngram.backoff_tables import NgramTables
from specdec_drafters.ngram.candidates import NgramCandidates, NgramModel
from specdec_drafters.ngram.kneser_ney import fit
from specdec_drafters.settings import NgramConfig, find_arpa

DEFAULT_TEXT_ORDER = 2
"""The order of a table that is counted where none is asked for: bigrams."""


class NgramDrafter(Drafter):
    """Drafts from an n-gram model with back-off; order 1 is a unigram, order 2 a bigram.

    The core gets the log-probabilities of a bounded number of tokens, never a row of V, and applies temperature,
    top-k and the other settings as it does to the target. q is what the core draws from: the model renormalized
    over these tokens. For trees, it is renormalized over the vocabulary.

    References:
        Sections 3.6 and 4.1 of arXiv 2211.17192 (n-gram models as negligible-cost drafters, Table 2).
    """

    drafts_trees = True
    autoregressive = True

    def __init__(self, config: NgramConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.candidates: NgramModel[Any]
        if config.kenlm is not None:
            from specdec_drafters.ngram.kenlm_model import load_kenlm

            self.candidates = load_kenlm(config, target)
        else:
            self.tables = _load_tables(config, target)
            self.candidates = NgramCandidates(self.tables, config.candidates)

    def open(self, session: SessionInfo) -> DraftSession:  # noqa: ARG002
        """Begin a batch; nothing is kept between steps."""
        return _NgramSession(self.candidates)


def _load_tables(config: NgramConfig, target: TargetInfo) -> NgramTables:
    if config.arpa is not None:
        return read_arpa(find_arpa(config.arpa, target.folder), target.vocab_size, config.order)
    assert config.text is not None, "the config checks that one is given"
    tokens = target_documents("ngram", config.text, config.max_bytes, target)
    return fit(tokens, target.vocab_size, config.order or DEFAULT_TEXT_ORDER).tables()


class _NgramSession(DraftSession):
    def __init__(self, model: NgramModel[Any]) -> None:
        self._model = model

    def propose(self, request: DraftRequest) -> Proposal:
        model, memory = self._model, self._model.memory
        if request.tree is not None:
            return draw_tree(request, self._scored, memory=memory)
        prefixes = [list(row[-memory:]) if memory else [] for row in request.tokens]
        drafted = 0
        while request.wants_more():
            pairs = zip(prefixes, request.budget, strict=True)
            rows = [model.after(model.context(prefix)) if drafted < budget else None for prefix, budget in pairs]
            for prefix, token in zip(prefixes, request.sample_candidates(rows), strict=True):
                prefix.append(token)
            drafted += 1
        return request.proposal()

    def _scored(self, prefix: list[int]) -> Tensor:
        """Return the log weights `[V]` of the tokens after a prefix."""
        return torch.from_numpy(self._model.row(self._model.context(prefix)))
