"""The n-gram drafter through the plugin interface: its q, its sources of text, and what it refuses."""

import calendar
import csv
import textwrap
from pathlib import Path

import pytest
from pydantic import ValidationError

from specdec_core.interface import ConfigError, TargetInfo
from specdec_drafters.common import texts
from specdec_drafters.ngram.drafter import NgramDrafter
from specdec_drafters.settings import NgramConfig
from tests.drafters.support import info_for, request_for, rows_of

DATA = Path(__file__).parent / "data"
V = 1000


def drafter_from(arpa, order=None, **settings):
    return NgramDrafter(NgramConfig(arpa=arpa, order=order, **settings), TargetInfo(V, folder=DATA))


def test_the_drafts_follow_the_counts(word_tokenizer, tmp_path):
    (tmp_path / "text").write_text("a b c d " * 200)
    target = TargetInfo(9, tokenizer=word_tokenizer, folder=tmp_path)
    drafter = NgramDrafter(NgramConfig(text="text"), target)
    assert drafter.tables.order == 2
    proposal = drafter.open(info_for(2, 9)).propose(request_for([[0], [3, 2]], [4, 2]))
    assert rows_of(proposal) == [[1, 2, 3, 0], [3, 0]]


def test_a_unigram_has_one_row():
    drafter = drafter_from("small.2.arpa", 1)
    one, other = (drafter.candidates.after(drafter.tables.context(tokens)) for tokens in ([1, 2], [7]))
    assert one is other


def test_builtin_library_text_leaves_the_held_out_modules_out(word_tokenizer, monkeypatch):
    documents = texts.read_documents("builtin:stdlib", Path(), 300_000)
    assert len(documents) > 1
    assert sum(len(document.encode()) for document in documents) <= 300_000
    whole = texts.read_documents("builtin:stdlib", Path(), 50_000_000)
    for module in (calendar, csv, textwrap):
        assert Path(module.__file__).read_text(encoding="utf-8") not in whole
    assert any("class Enum(" in document for document in whole)
    target = TargetInfo(9, tokenizer=word_tokenizer)
    assert NgramDrafter(NgramConfig(text="builtin:stdlib", max_bytes=20_000), target).tables.order == 2


def test_max_bytes_may_fall_within_a_character(tmp_path):
    (tmp_path / "text").write_text("aé" * 10, encoding="utf-8")
    assert texts.read_documents("text", tmp_path, 8) == ["aéaéa"]


def test_a_byte_order_mark_is_no_part_of_a_text_to_train_on(tmp_path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbf1 2\n")
    assert texts.read_documents("text", tmp_path, None) == ["1 2\n"]
    assert [ids.tolist() for ids in texts.read_ids(tmp_path / "text")] == [[1, 2]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the text .* is empty"),
        (b"ab\xffcd", r"byte 2 is not UTF-8"),
        (b"a", r"has 1 token\(s\) in a row; n-grams of order 2 need at least 2"),
    ],
)
def test_texts_that_cannot_be_counted(content, message, word_tokenizer, tmp_path):
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        NgramDrafter(NgramConfig(text="text"), TargetInfo(9, tokenizer=word_tokenizer, folder=tmp_path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give one of 'arpa' .*, 'text' .* and 'kenlm' .*; got none"),
        ({"arpa": "a", "max_bytes": 5}, "'max_bytes' applies to 'text', not to 'arpa'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        NgramConfig(**settings)
