"""The readers, cleaning and splits of the built-in T5's data, on small invented catalogs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipes.builtin_t5 import data
from recipes.builtin_t5.catalogs import READERS, javascript_string, po_entries, read
from recipes.builtin_t5.cleaning import fault, placeholders, prose_key, tidy
from recipes.builtin_t5.data import Pair, close_to, distinct, split_summaries, split_translations
from recipes.builtin_t5.docstrings import Summary, cut, split_docstring, summaries
from recipes.builtin_t5.programs import PROGRAMS, Package, Program

BUILTIN = Path(data.BUILTIN)
PERMISSIVE = {"MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "PostgreSQL"}


def program(reader: str, german: str = ".*de.*", english: str = ".*en.*") -> Program:
    return Program("toy", "MIT", (Package("npm", "toy", "1.0"),), reader, german, english)


def pairs_of(reader: str, files: dict[str, str], **patterns: str) -> list[tuple[str, str]]:
    content = {path: text.encode() for path, text in files.items()}
    return [(found.english, found.german) for found in read(program(reader, **patterns), content)]


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
    found = pairs_of("po", {"locale/de/LC_MESSAGES/x.po": text})
    assert found == [("one line\n", 'eine "Zeile"'), ("%d file", "%d Datei")]
    assert next(po_entries(text))["msgstr"] == 'eine "Zeile"'


def test_properties_and_scripts_are_read_without_running_them() -> None:
    properties = {
        "x_de.properties": "# note\nkey = Das l\\u00e4uft nicht, \\\n    weil ''{0}'' fehlt\n",
        "x.properties": "key=It fails, ''{0}'' is missing",
    }
    found = pairs_of("paired", properties, german=r"(x)_de\.properties", english=r"(x)\.properties")
    assert found == [("It fails, '{0}' is missing", "Das läuft nicht, weil '{0}' fehlt")]
    scripts = {
        "de.mjs": 'var A = "Rolle";\nvar de = {\n A: A,\n "b.c": "schlie\\xDFen",\n in: { d: "eins" } };',
        "en.mjs": 'var A = "Role";\nvar en = {\n A: A,\n "b.c": "close",\n in: { d: "one" } };',
    }
    found = pairs_of("paired", scripts, german=r"()de\.mjs", english=r"()en\.mjs")
    assert found == [("Role", "Rolle"), ("close", "schließen"), ("one", "eins")]
    with pytest.raises(ValueError, match="not a string literal"):
        javascript_string('"open')


@pytest.mark.parametrize(
    ("text", "accelerators", "expected"),
    [
        ("Save &as…", True, "Save as…"),
        ("Ordner (&&O) öffnen", True, "Ordner öffnen"),
        ("R&amp;D", False, "R&D"),
        ("see [the manual](https://a.b/c)\n now", False, "see the manual now"),
        ("a <strong>bold</strong><br/>step", False, "a bold step"),
    ],
)
def test_tidy(text: str, accelerators: bool, expected: str) -> None:
    assert tidy(text, accelerators) == expected


@pytest.mark.parametrize(
    ("english", "german", "reason"),
    [
        ("%s of %d files", "%d Dateien von %s", None),
        ("Hello {name}", "Hallo", "other placeholders"),
        ("Server %s", "server", "the same in both languages"),
        ("word " * 61, "Wort " * 40, "too long"),
        ("one two three four", "x", "lengths differ"),
        ("<a href='x'>see the list of all things</a>", "<a href='x'>siehe die Liste</a>", "markup"),
    ],
)
def test_faults(english: str, german: str, reason: str | None) -> None:
    found = fault(english, german)
    assert found is None if reason is None else found is not None and found.startswith(reason)


def test_placeholders_and_keys() -> None:
    assert placeholders("%(name)s {x} $1 100% sure %5.2f %m") == sorted(["%(name)s", "{x}", "$1", "%5.2f", "%m"])
    assert prose_key('Could not open "%s": error 12!') == prose_key("could not open {file} error")


def test_one_english_text_keeps_its_two_most_frequent_german_ones() -> None:
    texts = ["auf", "offen", "öffnen", "öffnen", "offen", "öffnen"]
    found = distinct([translation("open", text) for text in texts])
    assert [pair.target for pair in found] == ["öffnen", "offen"]


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


def test_close_to_counts_shared_words() -> None:
    assert close_to(["a b c d e", "a b c d x y"], ["a b c d"]) == {"a b c d e"}


def test_docstrings_are_split_and_cut() -> None:
    text = "Return the sum\n    of two numbers.\n\n"
    text += "    Both must be whole; a float is an error here.\n\n    Copyright (c) X\n"
    assert split_docstring(text) == (
        "Return the sum of two numbers.",
        "Both must be whole; a float is an error here.",
    )
    found = split_docstring("frob(x, y) -> z\n\nTurn the knob twice.\n\nThe knob must be there for this to work.")
    assert found == ("Turn the knob twice.", "The knob must be there for this to work.")
    assert split_docstring("Only a summary stands here.") is None
    sentences = " ".join(f"Sentence number {number} ends here." for number in range(60))
    assert cut(sentences).endswith("here.")
    assert 100 < len(cut(sentences).split()) <= 150
    assert cut("a b c.\n\n" + "d " * 160, 150).split()[-1] == "d"
    assert cut("w " * 60 + "end.\n\n" + "d " * 100).endswith("end.")


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
