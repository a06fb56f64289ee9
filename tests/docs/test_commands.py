"""Every command that a page shows exists, takes its options, and prints what the page says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from specdec_core.cli.main import app
from tests.docs.pages import PAGES, ROOT, blocks, load, name, spans

outputs = load(ROOT / "docs" / "outputs.py")

COMMANDS = typer.main.get_command(app)
_LIGHT = ("plugins", "validate", "schema")


def shell_lines(text: str) -> Iterator[list[str]]:
    """The simple commands of a block, each as its words; redirections are left out."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||;|\|", line):
            words = shlex.split(part, comments=True)
            end = next((n for n, word in enumerate(words) if word[0] in "<>" or word == "2>&1"), len(words))
            if words[:end]:
                yield words[:end]


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    for block in blocks("sh", "bash", "console"):
        for words in shell_lines(block.text):
            yield name(block.page), words
    for page in PAGES:
        for output in outputs.shown(page):
            for words in shell_lines(output.command):
                yield name(page), words


OURS = [(page, words) for page, words in shown_commands() if Path(words[0]).name == "specdec"]
SCRIPTS = [
    (page, words)
    for page, words in shown_commands()
    if Path(words[0]).name.startswith("python") and "-m" not in words
]


def identity(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def test_pages_show_commands():
    assert {words[1] for _, words in OURS} >= {"compare", "generate", "plugins", "validate", "schema"}
    assert SCRIPTS


@pytest.mark.parametrize(("page", "words"), OURS, ids=identity)
def test_a_command_exists_with_its_options(page, words):
    context = click.Context(COMMANDS, info_name="specdec")
    assert words[1] in COMMANDS.commands, f"{page}: there is no command {words[1]!r}"
    # Reads the words as a call would, and runs nothing: an unknown option or a missing argument raises.
    COMMANDS.commands[words[1]].make_context(words[1], words[2:], parent=context)


@pytest.mark.parametrize(
    ("page", "text"),
    sorted({(name(page), text) for page, text in spans() if re.match(r"specdec [a-z]", text)}),
    ids=identity,
)
def test_a_command_named_in_a_sentence_exists(page, text):
    assert text.split()[1] in COMMANDS.commands, f"{page}: `{text}` is no command"


@pytest.mark.parametrize(("page", "words"), SCRIPTS, ids=identity)
def test_a_script_exists_with_its_options(page, words):
    if len(words) == 1 or words[1] == "-c":
        return
    script = ROOT / words[1]
    assert script.is_file(), f"{page}: there is no {words[1]}"
    text = script.read_text(encoding="utf-8")
    for option in (word for word in words[2:] if word.startswith("--")):
        assert f'"{option}"' in text, f"{page}: {words[1]} has no option {option}"


@pytest.mark.parametrize(
    "output",
    [o for page in PAGES for o in outputs.shown(page) if o.command.split()[1] in _LIGHT],
    ids=lambda output: f"{name(output.page)}: {output.command}",
)
def test_a_command_prints_what_the_page_says(output, monkeypatch):
    monkeypatch.setenv("SPECDEC_PLUGINS", "specdec-core")
    assert outputs.run(output.command) == output.text


def test_every_shown_output_was_written():
    empty = [f"{name(o.page)}: {o.command}" for page in PAGES for o in outputs.shown(page) if not o.text.strip()]
    assert not empty, "python docs/outputs.py writes them"
