"""The n-gram drafter: what usually follows the last few tokens, from an ARPA file or a counted text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from specdec_core.border import Drafter, DraftRequest, DraftSession, Proposal, SessionInfo, TargetInfo
from specdec_core.errors import ConfigError
from specdec_drafters.arpa import read_arpa
from specdec_drafters.configs import NgramConfig
from specdec_drafters.ngram_counts import count_ngrams
from specdec_drafters.ngram_text import read_documents, tokenize_documents

if TYPE_CHECKING:
    from specdec_drafters.ngram_tables import NgramTables

DEFAULT_TEXT_ORDER = 2


class NgramDrafter(Drafter):
    """Drafts from an n-gram model with back-off; order 1 is a unigram, order 2 a bigram.

    The row of log-probabilities over all V tokens goes to the core as logits, so that temperature, top-k and
    the other settings apply as they do to the target. q is what the core draws from: the row renormalised
    over the vocabulary, since what the model gives to `<s>`, `</s>` and `<unk>` cannot be drafted.

    References:
        Sections 3.6 and 4.1 of arXiv 2211.17192 (n-gram models as negligible-cost drafters, Table 2).
    """

    Config = NgramConfig

    def __init__(self, config: NgramConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.tables = _load_tables(config, target)

    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch; nothing is kept between steps."""
        return _NgramSession(self.tables, session)


def _load_tables(config: NgramConfig, target: TargetInfo) -> NgramTables:
    if config.arpa is not None:
        return read_arpa(target.folder / Path(config.arpa).expanduser(), target.vocab_size, config.order)
    assert config.text is not None, "the config checks that one is given"
    if target.tokenizer is None:
        raise ConfigError(
            f"drafter 'ngram' cannot count the text {config.text!r}: the target has no tokenizer. "
            "Give 'arpa', an ARPA file over token ids, or a target with a tokenizer."
        )
    documents = read_documents(config.text, target.folder, config.max_bytes)
    tokens = tokenize_documents(documents, target.tokenizer)
    return count_ngrams(tokens, target.vocab_size, config.order or DEFAULT_TEXT_ORDER)


class _NgramSession(DraftSession):
    def __init__(self, tables: NgramTables, session: SessionInfo) -> None:
        self._tables = tables
        self._device = session.device
        self._memory = tables.order - 1
        self._constant: Tensor | None = None
        if self._memory == 0:
            row = torch.from_numpy(tables.row(())[: tables.vocab_size].copy()).to(session.device)
            self._constant = row.expand(session.batch_size, -1)

    def propose(self, request: DraftRequest) -> Proposal:
        if self._constant is not None:
            while request.wants_more():
                request.sample(self._constant)
            return request.proposal()
        prefixes = [list(row[-self._memory :]) for row in request.tokens]
        while request.wants_more():
            drawn = request.sample(self._logits(prefixes))
            for prefix, token in zip(prefixes, drawn.tolist(), strict=True):
                prefix.append(token)
        return request.proposal()

    def _logits(self, prefixes: list[list[int]]) -> Tensor:
        """Return ln q up to a constant for the token after each prefix, `[B, V]` float32."""
        tables = self._tables
        rows = np.empty((len(prefixes), len(tables.levels[0].words)), dtype=np.float32)
        for row, prefix in zip(rows, prefixes, strict=True):
            tables.write_row(tables.context(prefix), row)
        return torch.from_numpy(rows)[:, : tables.vocab_size].to(self._device)
