"""ARPA files over token ids: a writer of n-gram models, which this package, KenLM and SRILM read.

References:
    The format as `lmplz` and SRILM write it: `ngram-format(5)` of SRILM; https://kheafield.com/code/kenlm/.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from specdec_core.interface.files import writing_file
from specdec_drafters.ngram.arpa import LN_10
from specdec_drafters.ngram.backoff_tables import SPECIAL_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from specdec_drafters.ngram.backoff_tables import Level

LINES_AT_ONCE = 1 << 15


def write_arpa(
    path: Path,
    levels: Sequence[Level],
    known: NDArray[np.bool_],
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Write n-grams so that `read_arpa` returns the same tables, bit for bit.

    The same model gives the same bytes: lines stand in order of their words, token ids first, then `<s>`,
    `</s>` and `<unk>`. The file appears whole or not at all; what stood there is replaced.

    Args:
        path: The file.
        levels: The n-grams of orders 1 to N.
        known: `[W]` bool, which of the W = V + 3 words of order 1 are written.
        progress: Called with how many n-grams have been written.

    Raises:
        ConfigError: The file cannot be written; what stood there before stays.
    """
    names = np.array([*map(str, range(len(known) - len(SPECIAL_WORDS))), *SPECIAL_WORDS], dtype=object)
    listed = [np.flatnonzero(known), *(np.arange(len(level.words)) for level in levels[1:])]
    done = 0
    with writing_file(path) as temporary, temporary.open("w", encoding="ascii", newline="\n") as file:
        counts = "".join(f"ngram {order}={len(entries)}\n" for order, entries in enumerate(listed, start=1))
        file.write(f"\\data\\\n{counts}\n")
        for order, entries in enumerate(listed, start=1):
            file.write(f"\\{order}-grams:\n")
            for start in range(0, len(entries), LINES_AT_ONCE):
                some = entries[start : start + LINES_AT_ONCE]
                file.write(_lines(levels, order, some, names))
                done += len(some)
                progress(done)
            file.write("\n")
        file.write("\\end\\\n")


def _lines(levels: Sequence[Level], order: int, entries: NDArray[np.int64], names: NDArray[np.object_]) -> str:
    """Return the lines of some n-grams of one order.

    Args:
        levels: The n-grams of all orders.
        order: Which of them.
        entries: `[E]`, which n-grams of that order.
        names: `[W]`, each word as it is written.
    """
    level = levels[order - 1]
    is_last = order == len(levels)
    columns = [_decimal(level.log_probability[entries])]
    columns.extend(names[column].tolist() for column in _spell(levels[:order], entries))
    if not is_last:
        columns.append(_decimal(level.log_backoff[entries]))
    # Nine digits tell every float32 from its neighbors.
    line = "%.9g\t" + " ".join(["%s"] * order) + ("\n" if is_last else "\t%.9g\n")
    return (line * len(entries)) % tuple(chain.from_iterable(zip(*columns, strict=True)))


def _decimal(logarithms: NDArray[np.float32]) -> list[float]:
    """Return natural logarithms as decimal ones."""
    decimal: list[float] = (logarithms.astype(np.float64) / LN_10).tolist()
    return decimal


def _spell(levels: Sequence[Level], entries: NDArray[np.int64]) -> list[NDArray[np.int32]]:
    """Return the words of n-grams of the highest order in `levels`: one array `[E]` for each position."""
    columns = []
    for level in reversed(levels):
        columns.append(level.words[entries])
        entries = np.searchsorted(level.first, entries, side="right") - 1
    return columns[::-1]
