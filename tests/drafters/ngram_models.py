"""Tools of the n-gram tests: reference models, and reading ARPA files and levels in the plainest way."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdec_drafters.ngram.backoff_tables import SPECIAL_WORDS, Level

DATA = Path(__file__).parent / "data"
LN_10 = float(np.log(10))

Entries = dict[tuple[str, ...], tuple[float, float]]


def sentences_of(name: str) -> list[NDArray[np.int32]]:
    lines = (DATA / f"{name}.txt").read_text().splitlines()
    return [np.array(line.split(), dtype=np.int32) for line in lines]


def arpa_entries(path: Path) -> Entries:
    """Return log10 p and log10 back-off weight of each n-gram of a file."""
    entries = {}
    for line in path.read_text().splitlines():
        fields = line.split("\t")
        if len(fields) >= 2:
            entries[tuple(fields[1].split())] = (float(fields[0]), float(fields[2]) if fields[2:] else 0.0)
    return entries


def level_entries(levels: Sequence[Level], known: NDArray[np.bool_]) -> Entries:
    """Return the same of tables, by walking down from each context."""
    vocab_size = len(known) - len(SPECIAL_WORDS)
    names = [*map(str, range(vocab_size)), *SPECIAL_WORDS]
    entries = {}
    contexts: list[tuple[str, ...]] = [()]
    for level in levels:
        found = []
        for context, start, end in zip(contexts, level.first[:-1], level.first[1:], strict=True):
            words = level.words[start:end].tolist()
            assert words == sorted(set(words))
            for entry, word in enumerate(words, start=start):
                found.append((*context, names[word]))
                if context or known[word]:
                    weights = (level.log_probability[entry], level.log_backoff[entry])
                    entries[found[-1]] = (float(weights[0]) / LN_10, float(weights[1]) / LN_10)
        contexts = found
    return entries


def assert_same_entries(found: Entries, expected: Entries, atol: float) -> None:
    assert found.keys() == expected.keys()
    keys = sorted(expected)
    np.testing.assert_allclose([found[key] for key in keys], [expected[key] for key in keys], rtol=0, atol=atol)
