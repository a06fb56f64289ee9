"""The reference of commands: the help of each, with the options that several commands share in one place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import typer
import typer.cli

from specdec_core.cli.main import app

_OPTIONS = re.compile(r"^\*\*Options\*\*:\n\n((?:\* .*\n)*)", re.MULTILINE)


def reference(name: str) -> str:
    """Return the help of a command and of all commands below it. A trainer is on its drafter's page."""
    command = typer.main.get_command(app)
    context = command.make_context(name, [], resilient_parsing=True)
    text = typer.cli.get_docs_for_click(obj=command, ctx=context, name=name)
    # The marks of a trace are not links.
    text = re.sub(r"\[([-+!*]) \]", r"`[\1 ]`", text.partition("\n")[2].strip()) + "\n"
    text = re.sub(r"\* `--help`: .*\n", "", text)
    text = re.sub(
        r"### `specdec train (\S+)`\n\n(.*?\.)[ \n].*?(?:\n(?=### `specdec train)|(?=\n##|\Z))",
        r"* [`specdec train \1`](drafters/\1.md): \2\n",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(r"^\*\*Commands\*\*:\n\n(?:\* .*\n)*\n*", "", text, flags=re.MULTILINE)  # each has a heading
    # The arguments stand below, in their order.
    text = re.sub(r"\*\*Usage\*\*:\n\n```console\n.*?\n```\n\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^For example:\n\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(\* `(?:-- )?[A-Z|:_.[\]]+) <.*>`", r"\1`", text, flags=re.MULTILINE)
    text = re.sub(r" <(?:list\[)?(\w+)\]?(?: range)?>`", r" <\1>`", text)  # descriptions say what may be repeated
    first, *others = re.split(r"^(?=##+ `)", text, flags=re.MULTILINE)
    shared = _shared(line for part in others for block in _OPTIONS.findall(part) for line in block.splitlines())
    parts = [first, "## Shared options\n\n" + "\n".join(sorted(shared, key=_name)) + "\n\n"]
    parts += [_OPTIONS.sub(lambda found: _own(found[1].splitlines(), shared), part) for part in others]
    text = re.sub(r"(\*\*Arguments\*\*:\n\n(?:\* .*\n)*)\n\*\*Options\*\*:\n\n", r"\1", "".join(parts))
    text = re.sub(r"\*\*(?:Arguments|Options)\*\*:\n\n", "", text)  # one list
    text = re.sub(r"^```$(?=\n\w)", "```sh", text, flags=re.MULTILINE)
    return "\n" + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n\n"


def _shared(lines: Iterable[str]) -> set[str]:
    """Return the options that several commands have, one for each name."""
    shared: dict[str, str] = {}
    for line, count in Counter(lines).most_common():
        if count > 1:
            shared.setdefault(_name(line), line)
    return set(shared.values())


def _name(line: str) -> str:
    """Return the name of the option that a line describes."""
    return re.split(r"[ `,]", line.partition("--")[2], maxsplit=1)[0]


def _own(lines: list[str], shared: set[str]) -> str:
    """Return the options of a command: those that others have too by their names alone."""
    own = "\n".join(line for line in lines if line not in shared)
    names = ", ".join(f"`--{_name(line)}`" for line in lines if line in shared)
    block = f"**Options**:\n\n{own}\n\n" if own else ""
    return f"{block}[Shared](#shared-options): {names}.\n\n" if names else block
