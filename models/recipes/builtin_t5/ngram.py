"""Estimate a unigram and a bigram model of each task's targets, the drafters of the paper's Table 3.

They are estimated from the references of the training pairs. The bigram sees the decoder's start token as a
context; the unigram does not, because it is never drafted. Rare bigrams are dropped until a file is small enough
to ship, and their probability goes to the back-off.

Run from the repository root: `python -m recipes.builtin_t5.ngram`

References:
    Sections 3.6 and 4.1, Tables 2 and 3 of arXiv 2211.17192.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recipes.builtin_pair.architectures import BUILTIN
from recipes.builtin_t5.batches import Encoded, open_split
from recipes.builtin_t5.vocabulary import PAD_ID, VOCABULARY_SIZE, WORK
from specdec_drafters.ngram.arpa import write_arpa
from specdec_drafters.ngram.backoff_tables import Level
from specdec_drafters.ngram.kneser_ney import KneserNeyModel, fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER = BUILTIN / "t5-ngram"
TASKS = {"translation": False, "summarization": True}
ORDERS = {"unigram": 1, "bigram": 2}
MAX_BYTES = 1_000_000
START = np.array([PAD_ID], dtype=np.int32)


def answers(data: Encoded, summaries: bool | None, order: int) -> list[NDArray[np.int32]]:
    """Return the references of one task (of both if None) as sentences for an n-gram model of that order."""
    wanted = [index for index in range(len(data)) if summaries is None or data.summaries[index] == summaries]
    texts = [data.target(index).astype(np.int32) for index in wanted]
    return texts if order == 1 else [np.concatenate([START, text]) for text in texts]


def occurrences(model: KneserNeyModel, texts: list[NDArray[np.int32]]) -> NDArray[np.int64]:
    """Return how often each bigram of a model occurs in the texts, [E]; 1 for ends of sentences."""
    counts = Counter(pair for text in texts for pair in zip(text[:-1].tolist(), text[1:].tolist(), strict=True))
    level = model.levels[1]
    contexts = np.repeat(np.arange(len(level.first) - 1), np.diff(level.first)).tolist()
    pairs = zip(contexts, level.words.tolist(), strict=True)
    return np.array([counts.get(pair, 1) for pair in pairs], dtype=np.int64)


def prune(model: KneserNeyModel, keep: NDArray[np.bool_]) -> KneserNeyModel:
    """Return a bigram model with only the bigrams `keep` [E], and back-off weights with which rows sum to 1.

    A context's back-off weight is the probability that its bigrams leave, divided by the unigram probability of
    all other words.
    """
    unigrams, bigrams = model.levels
    contexts = np.repeat(np.arange(len(bigrams.first) - 1), np.diff(bigrams.first))[keep]
    words, log_probability = bigrams.words[keep], bigrams.log_probability[keep]
    width = len(unigrams.words)
    given = np.bincount(contexts, weights=np.exp(log_probability.astype(np.float64)), minlength=width)
    lower = np.exp(unigrams.log_probability[words].astype(np.float64))
    covered = np.bincount(contexts, weights=lower, minlength=width)
    backoff = np.log(np.clip(1.0 - given, 1e-9, None) / np.clip(1.0 - covered, 1e-9, None)).astype(np.float32)
    first = np.zeros(width + 1, dtype=np.int64)
    np.cumsum(np.bincount(contexts, minlength=width), out=first[1:])
    levels = (
        replace(unigrams, log_backoff=backoff),
        Level(words, log_probability, bigrams.log_backoff[keep], first),
    )
    return replace(model, levels=levels)


def shorten(path: Path) -> None:
    """Round the numbers of an ARPA file to five digits, which saves a third of its size."""
    text = path.read_text(encoding="ascii")
    path.write_text(re.sub(r"-?\d+\.\d+(e-\d+)?", lambda found: f"{float(found[0]):.5g}", text), encoding="ascii")


def write(path: Path, texts: list[NDArray[np.int32]], order: int, max_bytes: int = MAX_BYTES) -> int:
    """Estimate a model and write it; return the minimum count of its bigrams."""
    model = fit(texts, VOCABULARY_SIZE, order)
    counts = occurrences(model, texts) if order == 2 else None
    min_count = 1
    while True:
        small = model if counts is None else prune(model, counts >= min_count)
        write_arpa(path, small.levels, small.known)
        shorten(path)
        if counts is None or path.stat().st_size <= max_bytes:
            return min_count
        min_count += 1


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK, help="folder with the encoded pairs")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the ARPA files")
    parser.add_argument("--joint", action="store_true", help="also estimate one model for both tasks, to compare")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    data = open_split(arguments.work, "train")
    tasks: dict[str, bool | None] = {**TASKS, **({"joint": None} if arguments.joint else {})}
    for task, summaries in tasks.items():
        for name, order in ORDERS.items():
            path = arguments.out / f"{task}-{name}.arpa"
            min_count = write(path, answers(data, summaries, order), order)
            pruned = f", bigrams seen at least {min_count} times" if order == 2 else ""
            print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB{pruned}", flush=True)


if __name__ == "__main__":
    main()
