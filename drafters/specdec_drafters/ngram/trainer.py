"""`specdec train ngram`: estimate an n-gram model for a target, and write it to an ARPA file."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_core.interface import ConfigError, Progress, Trainer, TrainingReport
from specdec_core.interface.files import check_output, input_path
from specdec_core.models import load_model, load_vocabulary
from specdec_drafters.common.texts import read_documents, read_ids, split_lines, tokenize_documents
from specdec_drafters.ngram.arpa import write_arpa
from specdec_drafters.ngram.kneser_ney import KneserNeyModel, fit
from specdec_drafters.settings import NgramTrainerConfig
from specdec_drafters.training.sources import check_sources, own_samples, read_pairs
from specdec_drafters.training.trainer import usage

_DOCUMENTS_AT_ONCE = 1000


class NgramTrainer(Trainer):
    """Estimates interpolated modified Kneser-Ney n-grams over the target's token ids.

    References:
        Chen and Goodman 1998; Heafield et al. 2013. See `specdec_drafters.ngram.kneser_ney`.
    """

    config: NgramTrainerConfig
    """The options given."""

    def train(self, progress: Progress) -> TrainingReport:
        """Count, estimate, and write the ARPA file.

        Raises:
            SpecdecError: The target or the text cannot be read, the text is too short for the order, a token id is
                not in the target's vocabulary, or the file cannot be written.
        """
        config = self.config
        started = time.perf_counter()
        check_output(config.output, config.overwrite)
        # What is wrong with a file is said before a model is loaded.
        ids = None if config.ids is None else read_ids(input_path(config.ids))
        texts = self._texts()
        tokenizer, vocab_size = load_vocabulary(config.target)
        documents = ids if ids is not None else self._tokens(texts, tokenizer, progress)
        progress.stage("counting n-grams", config.order)
        model = fit(documents, vocab_size, config.order, progress.advance)
        progress.stage("writing", sum(model.ngram_counts))
        write_arpa(config.output, model.levels, model.known, progress.advance)
        facts = {
            "sentences": len(documents),
            "tokens": sum(map(len, documents)),
            **_facts(model),
            "bytes": config.output.stat().st_size,
            "seconds": round(time.perf_counter() - started, 1),
        }
        return TrainingReport((config.output,), facts, usage("ngram", "arpa", config.output))

    def _texts(self) -> list[str]:
        """Return the sentences of `text` as text; none without it."""
        if self.config.text is None:
            return []
        texts = read_documents(self.config.text, Path(), self.config.max_bytes)
        return split_lines(texts) if self.config.split == "line" else texts

    def _tokens(self, texts: list[str], tokenizer: Any, progress: Progress) -> list[NDArray[np.int32]]:
        """Return what the target makes of the texts, or writes itself: `[T]` token ids for each sentence."""
        config = self.config
        if config.samples is not None:
            return self._written(config.samples, progress)
        if tokenizer is None:
            raise ConfigError(
                f"--text {config.text} cannot be counted: the target {config.target} has no tokenizer. "
                "Give --ids, a file of its token ids, or a target with a tokenizer."
            )
        progress.stage("tokenizing", len(texts))
        documents: list[NDArray[np.int32]] = []
        for start in range(0, len(texts), _DOCUMENTS_AT_ONCE):
            some = texts[start : start + _DOCUMENTS_AT_ONCE]
            documents.extend(row for row in tokenize_documents(some, tokenizer) if len(row))
            progress.advance(start + len(some))
        return documents

    def _written(self, count: int, progress: Progress) -> list[NDArray[np.int32]]:
        """Return what the target writes: from its beginning of text, or in answer to the sources."""
        config = self.config
        target = load_model(config.target, device=config.device)
        check_sources(config.sources, target)
        pairs = [] if config.sources is None else read_pairs(config.sources, target)
        written = own_samples(target, count, config.seed, progress, [pair.source for pair in pairs])
        return [np.array(row, dtype=np.int32) for row in written]


def _facts(model: KneserNeyModel) -> dict[str, str | int | float]:
    facts: dict[str, str | int | float] = {}
    for order, (count, taken) in enumerate(zip(model.ngram_counts, model.discounts, strict=True), start=1):
        facts[f"{order}-grams"] = count
        amounts = " ".join(f"{amount:.4f}" for amount in taken.amounts)
        facts[f"discounts of order {order}"] = amounts + (" (fallback)" if taken.fallback else "")
    return facts
