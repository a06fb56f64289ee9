"""Back-off by hand, and how files are read."""

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from specdec_core.interface import ConfigError
from specdec_drafters.ngram import arpa
from specdec_drafters.ngram.arpa import read_arpa

DATA = Path(__file__).parent / "data"
V = 1000  # the vocabulary of the reference models
LN_10 = math.log(10)

HAND_MADE = """
\\data\\
ngram 1=6
ngram 2=5
ngram 3=2

\\1-grams:
-1.5\t<unk>\t0
-99\t<s>\t-0.3
-1.0\t</s>
-0.5\t0\t-0.2
-0.7\t1\t-0.4
-0.9\t2

\\2-grams:
-0.1\t0 1\t-0.25
-0.6\t<s> 0\t-0.15
-0.8\t1 </s>
-0.45\t1 <unk>
-0.35\t<unk> 2

\\3-grams:
-0.05\t<s> 0 1
-0.02\t0 1 2

\\end\\
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="model.arpa"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("context", "word", "log10"),
    [
        ([0, 0, 1], 2, -0.02),  # the trigram itself; the first 0 is too far away
        ([0, 0, 1], 0, -0.25 - 0.4 - 0.5),  # backs off from '0 1' and from '1'
        ([0, 0, 1], 3, -0.25 - 0.45),  # 3 is not listed, so it is '<unk>' after '1'
        ([2, 2, 0], 1, -0.1),  # '2 0' is no context: no back-off weight
        ([2, 2, 0], 2, -0.2 - 0.9),
        ([2, 2, 3], 2, -0.35),  # the context is '<unk>'
        ([2, 2, 3], 4, -1.5),
        ([0], 1, -0.05),  # a sequence of one token begins with '<s>'
        ([0], 2, -0.15 - 0.2 - 0.9),
    ],
)
def test_back_off_by_hand(write, context, word, log10):
    tables = read_arpa(write(HAND_MADE), vocab_size=5)
    row = tables.row(tables.context(context))
    assert row[word] == pytest.approx(log10 * LN_10, abs=1e-5)


def test_a_lower_order_than_the_file_holds(write):
    tables = read_arpa(write(HAND_MADE), vocab_size=5, order=2)
    assert tables.order == 2
    assert tables.row(tables.context([0, 0, 1]))[2] == pytest.approx((-0.4 - 0.9) * LN_10, abs=1e-5)


def broken(old, new):
    assert old in HAND_MADE
    return HAND_MADE.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"model.arpa:1: the file ends where .*\\data\\.* was expected; is it cut short"),
        (broken("ngram 2=5", "ngram 2=6"), ":22: 5 2-grams end here, but the file's head announces 6"),
        (broken("-0.9\t2", "-0.9\t5"), "13: expected token ids below 5, .* 5 is not.*another vocabulary"),
        (broken("-0.05\t<s> 0 1", "-0.05\t2 0 1"), ":23: expected the context '2 0' among the 2-grams"),
        (
            b"mmap lm http://kheafield.com/code format version 5\n\x00",
            "is a KenLM binary; give it as 'kenlm', or the ARPA file",
        ),
    ],
)
@pytest.mark.parametrize("lines_at_once", [1, 2, 1000])
def test_malformed_files_say_where_and_what(write, text, message, lines_at_once, monkeypatch):
    monkeypatch.setattr(arpa, "LINES_AT_ONCE", lines_at_once)
    with pytest.raises(ConfigError, match=message):
        read_arpa(write(text), vocab_size=5)


@pytest.mark.parametrize("lines_at_once", [1, 3])
def test_lines_read_together_or_one_by_one_are_the_same(lines_at_once, monkeypatch):
    expected = read_arpa(DATA / "small.3.arpa", V)
    monkeypatch.setattr(arpa, "LINES_AT_ONCE", lines_at_once)
    for found, level in zip(read_arpa(DATA / "small.3.arpa", V).levels, expected.levels, strict=True):
        for field in ("words", "log_probability", "log_backoff", "first"):
            np.testing.assert_array_equal(getattr(found, field), getattr(level, field))


@pytest.mark.parametrize("lines_at_once", [1, 1000])
def test_forms_in_which_others_write_the_same(write, lines_at_once, monkeypatch):
    monkeypatch.setattr(arpa, "LINES_AT_ONCE", lines_at_once)
    other = HAND_MADE.strip().replace("<unk>", "<UNK>").replace("-99\t<s>", "-inf\t<s>")
    packed = gzip.compress(b"\xef\xbb\xbf" + other.encode())
    found, expected = read_arpa(write(packed, "m.arpa.gz"), 5), read_arpa(write(HAND_MADE), 5)
    for context in ([0, 0, 1], [2, 2, 3], [0]):
        own, same = found.row(found.context(context)), expected.row(expected.context(context))
        np.testing.assert_allclose(np.exp(own), np.exp(same), atol=1e-6)


def test_a_file_without_unk_gives_unlisted_ids_next_to_nothing(write):
    text = "\\data\\\nngram 1=2\n\n\\1-grams:\n-0.3\t0\n-0.3\t1\n\n\\end\\\n"
    row = np.exp(read_arpa(write(text), 4).row(())[:4])
    np.testing.assert_allclose(row, [10**-0.3, 10**-0.3, 0, 0], atol=1e-6)
