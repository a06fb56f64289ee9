"""ARPA files over token ids: reading and writing n-gram models.

References:
    The format as `lmplz` and SRILM write it: `ngram-format(5)` of SRILM; https://kheafield.com/code/kenlm/.
"""

import gzip
import math
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NoReturn, Self, cast

import numpy as np
from numpy.typing import NDArray

from specdec_core.interface import ConfigError
from specdec_core.interface.errors import reading
from specdec_core.interface.files import writing_file
from specdec_drafters.ngram.backoff_tables import SPECIAL_WORDS, Level, NgramTables, build_level, find_contexts
from specdec_drafters.settings import MAX_ORDER

KENLM_BINARY = b"mmap lm http://kheafield.com/code"
LN_10 = math.log(10.0)
MAX_DIGITS = 15
COUNT = re.compile(r"\s*[0-9]{1,15}\s*")
# Far beyond the -99 and -100 that SRILM and KenLM write for no probability at all. What is larger ends as infinity
# or NaN in float32, or leaves nothing of the numbers that it is added to.
MAX_LOG10 = 1000.0
# What KenLM scores an unlisted word with when the file has no `<unk>`; here also what a file writes as `-inf`.
NEXT_TO_NOTHING_LOG10 = -100.0
LINES_AT_ONCE = 1 << 14


def read_arpa(path: Path, vocab_size: int, order: int | None = None) -> NgramTables:
    """Return the n-grams of an ARPA file, up to `order` or all of them.

    Args:
        path: The file, which may be packed by gzip. Its words are token ids in decimal, `<s>`, `</s>` and `<unk>`,
            also written `<UNK>`.
        vocab_size: V of the target; an id at or above it means that the file is over another vocabulary.
        order: The longest n-grams wanted.

    Raises:
        ConfigError: naming file and line, what stands there and what was expected.
    """
    with reading(path, ConfigError, "an ARPA file"), _ArpaReader(path, vocab_size) as reader:
        counts = reader.read_counts()
        if order is not None and order > len(counts):
            raise ConfigError(
                f"{path} holds n-grams of order 1 to {len(counts)}; order {order} was asked for. "
                f"Give an order of at most {len(counts)}, or a file of a higher order."
            )
        levels = [reader.read_unigrams(counts[0])]
        known = reader.known
        for _ in range(2, (order or len(counts)) + 1):
            levels.append(reader.read_level(levels, counts[len(levels)]))
        if len(levels) == len(counts):
            reader.read_end()
    return NgramTables(vocab_size, levels, known)


class _ArpaReader:
    """Walks through a file line by line and says where it is when something is wrong."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        self.known = np.zeros(vocab_size + len(SPECIAL_WORDS), dtype=bool)
        self._path = path
        self._vocab_size = vocab_size
        self._special = {word: vocab_size + index for index, word in enumerate(SPECIAL_WORDS)}
        self._special["<UNK>"] = self._special["<unk>"]
        self._ids = {str(id_).encode(): id_ for id_ in range(vocab_size)}
        self._ids |= {word.encode(): id_ for word, id_ in self._special.items()}
        self._file = gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # noqa: SIM115 (see __exit__)
        self._lines = iter(cast("Iterable[bytes]", self._file))
        self._number = 0
        self._line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _fail(self, expected: str, number: int | None = None) -> NoReturn:
        found = f"found {self._line[:60]!r}" if number is None else "found none"
        raise ConfigError(f"{self._path}:{number or self._number}: expected {expected}; {found}.")

    def _next(self, expected: str) -> str:
        """Read on to the next line that is not blank."""
        for line in self._lines:
            self._number += 1
            if self._number == 1 and line.startswith(KENLM_BINARY):
                raise ConfigError(
                    f"{self._path} is a KenLM binary; give it as 'kenlm', or the ARPA file that it was made from."
                )
            try:
                self._line = line.removeprefix(BOM_UTF8).decode().strip()
            except UnicodeDecodeError as error:
                raise ConfigError(f"{self._path}:{self._number}: not a text file in UTF-8.") from error
            if self._line:
                return self._line
        raise ConfigError(
            f"{self._path}:{self._number + 1}: the file ends where {expected} was expected; is it cut short?"
        )

    def read_counts(self) -> list[int]:
        """Read the head: how many n-grams of each order the file says it holds."""
        while self._next("\\data\\, the head of an ARPA file,") != "\\data\\":
            pass
        counts: list[int] = []
        while not self._next("'ngram 1=COUNT'").startswith("\\"):
            label, _, count = self._line.partition("=")
            if label.split() != ["ngram", str(len(counts) + 1)] or not COUNT.fullmatch(count):
                self._fail(f"'ngram {len(counts) + 1}=COUNT' or '\\1-grams:'")
            if len(counts) == MAX_ORDER:
                self._fail(f"n-grams of order 1 to {MAX_ORDER} at most")
            counts.append(int(count))
        if not counts:
            self._fail("'ngram 1=COUNT'")
        return counts

    def read_unigrams(self, count: int) -> Level:
        """Read the words; ids that are not among them get the score of `<unk>`."""
        words, log_p, log_backoff, numbers = self._read_section(1, count)
        listed = words[:, 0]
        self._refuse_repeats(listed.astype(np.int64), numbers)
        width = len(self.known)
        self.known[listed] = True
        probability = np.full(width, NEXT_TO_NOTHING_LOG10 * LN_10, dtype=np.float32)
        backoff = np.zeros(width, dtype=np.float32)
        probability[listed], backoff[listed] = log_p, log_backoff
        unlisted = ~self.known
        unlisted[self._vocab_size :] = False
        probability[unlisted] = probability[self._special["<unk>"]]
        return build_level(
            np.zeros(width, dtype=np.int64), np.arange(width, dtype=np.int32), probability, backoff, 1
        )

    def read_level(self, levels: list[Level], count: int) -> Level:
        """Read the n-grams one order above `levels`."""
        order = len(levels) + 1
        words, log_p, log_backoff, numbers = self._read_section(order, count)
        width = len(self.known)
        contexts = find_contexts(levels, words[:, :-1], width)
        missing = np.flatnonzero(contexts < 0)
        if len(missing):
            context = " ".join(self._name(word) for word in words[missing[0], :-1])
            self._fail(f"the context '{context}' among the {order - 1}-grams", int(numbers[missing[0]]))
        unknown = np.flatnonzero(~self.known[words[:, -1]])
        if len(unknown):
            word = self._name(words[unknown[0], -1])
            self._fail(f"the word '{word}' among the 1-grams", int(numbers[unknown[0]]))
        self._refuse_repeats(contexts * width + words[:, -1], numbers)
        return build_level(contexts, words[:, -1], log_p, log_backoff, len(levels[-1].words))

    def read_end(self) -> None:
        """Read the last line."""
        if self._line != "\\end\\":
            self._fail("'\\end\\' after the last n-gram")

    def _name(self, word: int) -> str:
        return str(word) if word < self._vocab_size else SPECIAL_WORDS[word - self._vocab_size]

    def _refuse_repeats(self, keys: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """Fail at the second of two lines with one key."""
        order = np.argsort(keys, kind="stable")
        again = np.flatnonzero(np.diff(keys[order]) == 0)
        if len(again):
            first, second = numbers[order[again[0]]], numbers[order[again[0] + 1]]
            raise ConfigError(f"{self._path}:{second}: this n-gram stands in line {first} already.")

    def _read_section(
        self, order: int, count: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
        r"""Read `\N-grams:` and its lines, up to the next line that begins with a backslash.

        Returns:
            words `[E, order]`, ln p `[E]`, ln back-off `[E]`, and the line number of each `[E]`.
        """
        if self._line != f"\\{order}-grams:":
            self._fail(f"'\\{order}-grams:'")
        words, scores, numbers = [], [], []
        left = count
        while left and (block := self._read_block(order, min(left, LINES_AT_ONCE))):
            words.append(block[0])
            scores.append(block[1])
            numbers.append(np.arange(self._number - len(block[0]), self._number, dtype=np.int64) + 1)
            left -= len(block[0])
        rest = self._read_rest(order)
        columns = np.concatenate([*scores, rest[1]]) * LN_10
        scaled = columns.astype(np.float32)
        lines = np.concatenate([*numbers, rest[2]])
        if len(lines) != count:
            raise ConfigError(
                f"{self._path}:{self._number}: {len(lines)} {order}-grams end here, but the file's head "
                f"announces {count}; it was cut or edited."
            )
        return np.concatenate([*words, rest[0]]), scaled[:, 0], scaled[:, 1], lines

    def _read_block(self, order: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.float64]] | None:
        """Read the next lines in one go, if there is nothing about them that needs a closer look.

        Returns:
            words `[count, order]` and log10 of p and back-off `[count, 2]`; None if nothing was read.
        """
        lines = list(islice(self._lines, count))
        try:
            rows = [line.split() for line in lines]
            widths = set(map(len, rows))
            if len(rows) < count or not widths <= {order + 1, order + 2}:
                raise ValueError
            if len(widths) > 1:
                rows = [row if len(row) == order + 2 else [*row, b"0"] for row in rows]
            fields = list(zip(*rows, strict=True))
            scores = np.zeros((count, 2))
            scores[:, 0] = list(map(float, fields[0]))
            if len(fields) == order + 2:
                scores[:, 1] = list(map(float, fields[-1]))
            scores[np.isneginf(scores)] = NEXT_TO_NOTHING_LOG10
            words = np.empty((count, order), dtype=np.int32)
            for index in range(order):
                words[:, index] = list(map(self._ids.__getitem__, fields[index + 1]))
            if not (np.abs(scores) <= MAX_LOG10).all() or scores[:, 0].max() > 0:
                raise ValueError
        except (ValueError, KeyError):
            self._lines = chain(lines, self._lines)
            return None
        self._number += count
        return words, scores

    def _read_rest(self, order: int) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int64]]:
        """Read line by line up to the next that begins with a backslash; fail at what is wrong."""
        words: list[int] = []
        scores: list[tuple[float, float]] = []
        numbers: list[int] = []
        while not self._next(f"a {order}-gram or the end of its section").startswith("\\"):
            fields = self._line.split()
            if len(fields) not in (order + 1, order + 2):
                self._fail(f"a log-probability, {order} word(s) and at most one back-off weight")
            words.extend(self._word(field) for field in fields[1 : order + 1])
            backoff = self._number_of(fields[-1], "back-off weight") if len(fields) == order + 2 else 0.0
            scores.append((self._probability(fields[0]), backoff))
            numbers.append(self._number)
        ids = np.array(words, dtype=np.int32).reshape(-1, order)
        return ids, np.array(scores, dtype=np.float64).reshape(-1, 2), np.array(numbers, dtype=np.int64)

    def _number_of(self, field: str, what: str) -> float:
        try:
            number = float(field)
            number = NEXT_TO_NOTHING_LOG10 if number == -math.inf else number
        except ValueError:
            number = math.nan
        if not abs(number) <= MAX_LOG10:  # NaN included
            self._fail(f"a {what} (a decimal number from -{MAX_LOG10:g} to {MAX_LOG10:g}), not {field[:40]!r}")
        return number

    def _probability(self, field: str) -> float:
        number = self._number_of(field, "log10 probability")
        if number > 0:
            self._fail(f"a log10 probability of at most 0, not {field}")
        return number

    def _word(self, field: str) -> int:
        special = self._special.get(field)
        if special is not None:
            return special
        if not (field.isascii() and field.isdecimal()):
            self._fail(f"token ids as words; {field[:40]!r} is none. Estimate the model on token ids, not on text")
        if len(field) > MAX_DIGITS or int(field) >= self._vocab_size:
            self._fail(
                f"token ids below {self._vocab_size}, the target's vocabulary; {field[:40]} is not. "
                "The file is over another vocabulary"
            )
        return int(field)


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
