"""The readers, cleaning and splits of the built-in T5's data, on small invented catalogs."""

import json
from pathlib import Path

import pytest

from recipes.builtin_t5 import data
from recipes.builtin_t5.catalogs import READERS, po_entries, read
from recipes.builtin_t5.cleaning import prose_key
from recipes.builtin_t5.data import Pair, close_to, split_summaries, split_translations
from recipes.builtin_t5.docstrings import Summary, summaries
from recipes.builtin_t5.programs import PROGRAMS, Package, Program

BUILTIN = Path(data.BUILTIN)
PERMISSIVE = {"MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "PostgreSQL"}


def program(reader: str, german: str = ".*de.*", english: str = ".*en.*") -> Program:
    return Program("toy", "MIT", (Package("npm", "toy", "1.0"),), reader, german, english)


def translation(english: str, german: str = "ein Wort", name: str = "django") -> Pair:
    return Pair("translate", english, german, name, "location", prose_key(english))


def test_every_program_is_permissive_and_has_a_reader() -> None:
    assert {entry.licence for entry in PROGRAMS} <= PERMISSIVE
    assert {entry.reader for entry in PROGRAMS} <= set(READERS)
    assert set(data.TEST) <= {entry.name for entry in PROGRAMS}


def test_po_reads_continued_lines_and_the_singular_and_leaves_fuzzy_ones() -> None:
    text = """
msgid ""
msgstr "header"

#: a.py:1
msgid "one "
"line\\n"
msgstr "eine \\"Zeile\\""

#, fuzzy
msgid "guess"
msgstr "Raten"

#~ msgid "old"
#~ msgstr "alt"

msgctxt "menu"
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"
"""
    found = read(program("po"), {"locale/de/LC_MESSAGES/x.po": text.encode()})
    assert [(pair.english, pair.german) for pair in found] == [
        ("one line\n", 'eine "Zeile"'),
        ("%d file", "%d Datei"),
    ]
    assert next(po_entries(text))["msgstr"] == 'eine "Zeile"'


def test_no_text_is_in_two_splits() -> None:
    words = ["file", "server", "user", "table", "index", "page", "value", "entry", "group", "query"]
    texts = [f"the {a} of the {b} is not in {c}" for a in words for b in words for c in words]
    pairs = [
        translation(text + tail, name=name) for text in texts for tail, name in (("", "django"), (" %d!", "nova"))
    ]
    splits = split_translations(pairs)
    keys = {split: {pair.key for pair in found} for split, found in splits.items()}
    assert len(splits["test"]) == data.TEST["django"]
    assert {pair.program for pair in splits["test"]} == {"django"}
    assert keys["valid"]
    for one, other in (("train", "test"), ("train", "valid"), ("valid", "test")):
        assert not keys[one] & keys[other]
    assert not close_to(keys["train"] | keys["valid"], keys["test"])
    reversed_splits = split_translations(pairs[::-1])
    assert {pair.key for pair in reversed_splits["test"]} == keys["test"]


@pytest.mark.slow
def test_held_out_docstrings_are_in_no_training_pair() -> None:
    """Imports the whole standard library to read its docstrings."""
    train, held_out = summaries([Summary("Other text.", "Wrap a single paragraph of text.", "x", False)])
    assert len(held_out) > 140
    assert len(train) > 2000
    assert {item.source for item in held_out} >= {"textwrap.wrap", "heapq.merge"}
    assert not {item.summary for item in train} & {item.summary for item in held_out}
    splits = split_summaries(train, held_out)
    assert [len(splits[split]) for split in ("valid", "test")] == [data.VALID["summarize"], data.TEST_SUMMARIES]
    for side in ("target", "source_text"):
        trained = {getattr(pair, side) for pair in splits["train"]}
        assert not trained & {getattr(pair, side) for split in ("valid", "test") for pair in splits[split]}


@pytest.mark.parametrize(("name", "prefix"), [("translation", data.TRANSLATE), ("summarization", data.SUMMARIZE)])
def test_shipped_sets_have_their_fields_and_licences(name: str, prefix: str) -> None:
    lines = [json.loads(line) for line in (BUILTIN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len({line["id"] for line in lines}) == len(lines) >= 100
    for line in lines:
        assert set(line) == {"id", "prompt", "reference", "source"}
        assert line["prompt"].startswith(prefix)
        assert line["reference"].strip()
        assert line["source"].rpartition(", ")[2] in PERMISSIVE | {"PSF-2.0"}
    if name == "translation":
        for quoted in {line["id"].partition("-")[2] for line in lines}:
            assert (BUILTIN / f"LICENSE-{data.TITLES[quoted]}.txt").is_file()
        lengths = sorted(len(line["prompt"].split()) - 4 for line in lines[:20])
        assert lengths[0] < 8
        assert lengths[-1] > 12
    else:
        assert len({line["source"].split(": ")[1].split(".")[0] for line in lines[:18]}) > 12
