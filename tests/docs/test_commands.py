"""Every command that a page shows exists, takes its options, and prints what the page says."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.errors import SpecdecError
from tests.docs.pages import PAGES, ROOT, blocks, load, name, spans

outputs = load(ROOT / "docs" / "outputs.py")

COMMANDS = typer.main.get_command(app)
_LIGHT = ("plugins", "validate", "schema", "theory")


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


def command_of(words: list[str]) -> tuple[Any, Any, list[str]]:
    """The command that words call, its context, and the words that are left for it."""
    command, context, left = COMMANDS, click.Context(COMMANDS, info_name="specdec"), words[1:]
    while hasattr(command, "get_command") and left and not left[0].startswith("-"):
        inner = command.get_command(context, left[0])
        assert inner is not None, f"there is no command {left[0]!r}"
        context = click.Context(inner, info_name=left[0], parent=context)
        command, left = inner, left[1:]
    return command, context, left


def identity(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def test_pages_show_commands():
    names = {"compare", "generate", "measure", "plugins", "schema", "theory", "train", "validate"}
    assert {words[1] for _, words in OURS} >= names
    assert SCRIPTS


@pytest.mark.parametrize(("page", "words"), OURS, ids=identity)
def test_a_command_exists_with_its_options(page, words):
    command, context, left = command_of(words)
    if left[-1:] != ["--help"]:
        # Reads the words as a call would, and runs nothing: an unknown option or a missing argument raises.
        command.make_context(context.info_name, left, parent=context.parent)


@pytest.mark.parametrize(
    ("page", "text"),
    sorted({(name(page), text) for page, text in spans() if re.match(r"specdec [a-z]", text)}),
    ids=identity,
)
def test_a_command_named_in_a_sentence_exists(page, text):
    # What is left open is in capitals: `specdec train NAME`.
    words = list(itertools.takewhile(lambda word: re.match(r"[a-z]", word), text.split()))
    command_of(words)


@pytest.mark.parametrize("words", ["specdec plugin", "specdec train nobody", "specdec train nobody --order 2"])
def test_a_command_that_is_not_there_is_noticed(words):
    with pytest.raises((AssertionError, SpecdecError)):
        command_of(words.split())


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


@pytest.mark.parametrize(
    "output",
    [
        o
        for page in PAGES
        for o in outputs.shown(page)
        if "specdec generate" in o.command and "2>" not in o.command
    ],
    ids=lambda output: f"{name(output.page)}: {output.command[:60]}",
)
def test_what_is_generated_is_what_the_page_says(output):
    # After a built-in model was trained again, the pages must be written again. Only the speed may differ.
    def without_speed(text: str) -> str:
        return re.sub(r"[\d.]+ tokens/s", "tokens/s", text)

    result = CliRunner().invoke(app, shlex.split(output.command)[1:], env={"NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    assert without_speed(outputs.tidy(result.stdout)) == without_speed(output.text), (
        "python docs/outputs.py --like generate"
    )


def test_every_shown_output_was_written():
    empty = [f"{name(o.page)}: {o.command}" for page in PAGES for o in outputs.shown(page) if not o.text.strip()]
    assert not empty, "python docs/outputs.py writes them"
