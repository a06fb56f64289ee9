"""The page of commands, from the command line itself.

What stands between `<!-- commands -->` and `<!-- end of commands -->` is written by `python docs/renew.py`, the
rest of the page is left. Of the commands that plugins bring along, those are shown that come with specdec,
whatever else is installed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import typer

from specdec_core.cli.main import app
from specdec_core.registry import default_registry

PAGES = [Path(__file__).parent / "commands.md"]
_PLACE = re.compile(r"(<!-- commands -->\n).*(<!-- end of commands -->)", re.DOTALL)
_NOTES = re.compile(r"\s*\[(?P<notes>[^][]*)\]$")
_KINDS = {
    "integer": "whole number",
    "int": "whole number",
    "float": "number",
    "text": "text",
    "str": "text",
    "path": "path",
    "a number": "a number",
}


@dataclass(frozen=True)
class Command:
    """A command, or a group of them, as it is called."""

    path: str
    click: Any

    @property
    def depth(self) -> int:
        return self.path.count(" ")


def commands(command: Any = None, path: str = "specdec") -> Iterator[Command]:
    """Yield every command below one, itself first; below all, if none is given."""
    command = typer.main.get_command(app) if command is None else command
    yield Command(path, command)
    context = click.Context(command, info_name=path)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        if path != "specdec train" or name in _shipped():
            yield from commands(command.get_command(context, name), f"{path} {name}")


def _shipped() -> set[str]:
    """Return the names of the trainers that come with specdec."""
    records = default_registry().records()
    return {r.name for r in records if r.kind == "trainer" and r.distribution == "specdec-core"}


def renewed(text: str) -> str:
    """Return the page with the commands as they are."""
    sections = "\n".join(_section(command) for command in commands())
    return _PLACE.sub(lambda found: f"{found[1]}\n{sections}\n{found[2]}", text)


def _section(command: Command) -> str:
    """Return what the page says of a command: how it is called, its help, and a table of what it takes."""
    # Examples are marked as what they are, so that they are coloured, and tried by the tests.
    shown = iter(["```sh", "```"] * command.click.help.count("```"))
    about = re.sub(r"^```$", lambda _: next(shown), inspect.cleandoc(command.click.help), flags=re.MULTILINE)
    heading = "#" * max(2, command.depth + 1)
    parts = [f"{heading} {command.path}", f"```text\n{usage(command)}\n```", about, _table(command.click)]
    return "\n\n".join(filter(None, parts)) + "\n"


def usage(command: Command) -> str:
    """Return how a command is called."""
    arguments = [parameter for parameter in command.click.params if parameter.param_type_name == "argument"]
    names = [_argument(each) if each.required else f"[{_argument(each)}]" for each in arguments]
    return " ".join([command.path, "[OPTIONS]", *names, getattr(command.click, "subcommand_metavar", "")]).strip()


def _table(command: Any) -> str:
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if not rows:
        return ""
    return "\n".join(["| | value | default | what it does |", "|---|---|---|---|", *rows])


def _row(parameter: Any) -> str:
    about = " ".join((parameter.help or "").split())
    noted = _NOTES.search(about)
    notes = noted["notes"].split("; ") if noted else []
    about = _NOTES.sub("", about)
    if parameter.multiple and "may be repeated" not in about:
        about += " May be repeated."
    cells = [name(parameter), _value(parameter, notes), _default(parameter, notes), about]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def name(parameter: Any) -> str:
    """Return how an argument or an option is written, in all its ways."""
    if parameter.param_type_name == "argument":
        return f"`{_argument(parameter)}`"
    return ", ".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts])


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _value(parameter: Any, notes: list[str]) -> str:
    """Return what may be written: a kind and its bounds in words, choices, or what the help calls it."""
    if getattr(parameter, "is_flag", False):
        return "–"
    bounds = [
        note for note in notes if not note.startswith(("default: ", "one of ")) and note != "may be repeated"
    ]
    called = parameter.metavar if parameter.param_type_name == "option" else None
    kinds = (called or _kind(parameter)).strip("<>").removeprefix("list[").removesuffix("]").split("|")
    for note in notes:
        if note.startswith("one of "):
            kinds = note.removeprefix("one of ").split(", ")
    words = [_KINDS.get(kind, f"`{kind}`") for kind in kinds]
    return ", ".join([(", " if words[0].startswith("`") else " or ").join(dict.fromkeys(words)), *bounds])


def _kind(parameter: Any) -> str:
    # Of old, typer left types to click.
    if not hasattr(parameter, "display_type"):
        return str(parameter.type.name)
    return str(parameter.display_type(click.Context(click.Command("none"))))


def _default(parameter: Any, notes: list[str]) -> str:
    """Return the default: what the help notes, or the parameter's own."""
    if parameter.required:
        return "required"
    flag = getattr(parameter, "is_flag", False)
    for note in notes:
        if note.startswith("default: "):
            return f"`{'--' if flag else ''}{note.removeprefix('default: ')}`"
    return "–" if flag or parameter.default in (None, [], ()) else f"`{parameter.default}`"
