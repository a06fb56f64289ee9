"""The reference of commands: what each is for, two examples, and its own options; shared options stand once."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import click
import typer

from specdec_core.cli.main import app
from specdec_core.interface.settings import GenerationSettings, SamplingSettings

_EXAMPLES = 2
"""The most examples of a command; its --help has all."""


def examples() -> Iterator[str]:
    """Yield the examples in the help of all commands."""
    for context in _commands():
        yield from _examples(context)


def _commands() -> Iterator[click.Context]:
    """Yield each command in its context, groups before what is in them."""
    root: Any = typer.main.get_command(app)
    yield from _below(click.Context(root, info_name="specdec"))


def _below(context: click.Context) -> Iterator[click.Context]:
    group: Any = context.command
    for name in group.list_commands(context) if hasattr(group, "list_commands") else ():
        inner = click.Context(group.get_command(context, name), info_name=name, parent=context)
        yield inner
        yield from _below(inner)


def _examples(context: click.Context) -> list[str]:
    block = re.search(r"^```\n(.*?)^```", _help(context), re.DOTALL | re.MULTILINE)
    return re.findall(r"^\S.*(?:\n +.*)*", block[1], re.MULTILINE) if block else []


def reference(_: str) -> str:
    """Return a section for each command. A trainer is one line, as it is on its drafter's page."""
    found = [(context.command_path, context) for context in _commands()]
    options = {path: [*_options(context)] for path, context in found if not _is_trainer(path)}
    shared = _shared(line for lines in options.values() for line in lines if "--" in line)
    known = {line.partition(" (")[0] for line in shared}
    keys = {
        key.replace("_", "-") for model in (SamplingSettings, GenerationSettings) for key in model.model_fields
    }
    settings = sorted(keys & {_name(line) for lines in options.values() for line in lines})
    parts = [
        f"## Shared options\n\n{', '.join(f'`--{name}`' for name in settings)} set the keys of these names of "
        "[`sampling`](study-file.md#sampling-and-draft_sampling) and [`generation`](study-file.md#generation).\n",
        *sorted((line for line in shared if _name(line) not in keys), key=_name),
    ]
    for path, context in found:
        about = " ".join(_help(context).partition("\n\n")[0].split())
        if _is_trainer(path):
            parts.append(f"- [`{path}`](drafters/{context.info_name}.md): {_sentence(about)}")
            continue
        shown = "\n".join(_examples(context)[:_EXAMPLES])
        parts += ["", f"#{'#' * path.count(' ')} `{path}`", "", about, "", f"```sh\n{shown}\n```", ""]
        own = (line for line in options[path] if line.partition(" (")[0] not in known)
        parts += [line for line in own if _name(line) not in keys and not line.startswith("- `STUDY`")]
    return "\n" + re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n\n"


def _is_trainer(path: str) -> bool:
    return path.startswith("specdec train ")


def _sentence(text: str) -> str:
    """Return the first sentence of a text."""
    return re.split(r"(?<=\.) (?=[A-Z`])", text, maxsplit=1)[0]


def _help(context: click.Context) -> str:
    return inspect.cleandoc(context.command.help or "")


def _options(context: click.Context) -> Iterator[str]:
    """Yield a line for each argument and option of a command."""
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or "--help" in parameter.opts:
            continue
        shown = re.sub(r"^([A-Z|:_.[\]]+) <.*>", r"\1", record[0].strip())  # an argument
        shown = re.sub(r" <(?:list\[)?(\w+)\]?(?: range)?>", r" <\1>", shown)  # its text says what may be repeated
        text, _, default = " ".join(record[1].split()).partition(" [")
        facts = [fact for fact in re.split(r"[];] ?\[?", default) if fact and not re.search(r"x[<>]|<=x", fact)]
        facts = [re.sub(r": \((.*)\)$", r": \1", fact) for fact in facts]
        yield f"- `{shown}`: {_sentence(text)}{''.join(f' ({fact})' for fact in facts)}"


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
