"""The reference of commands: what each is for, an example, and its own options; shared options stand once."""

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
    """Return a section for each command; the pages of drafters have the options of their trainers."""
    found = [(context.command_path, context) for context in _commands()]
    trainers = [context.info_name for path, context in found if path.startswith("specdec train ")]
    found = [(path, context) for path, context in found if context.info_name not in trainers]
    options = {path: [*_options(context)] for path, context in found}
    shared = _shared(line for lines in options.values() for line in lines if "--" in line)
    known = {line.partition(" (")[0] for line in shared}
    models = (SamplingSettings, GenerationSettings)
    keys = {key.replace("_", "-") for model in models for key in model.model_fields}
    parts = [
        "## Shared options\n\n`generate` accepts the keys of "
        "[`sampling`](study-file.md#sampling-and-draft_sampling) and [`generation`](study-file.md#generation) as "
        "options, such as `--top-k` and `--max-new-tokens`; `record` and `measure` accept most of them. From the "
        "keys of [a run](study-file.md#a-run), `generate` also accepts `--lenience`, `--rule` and "
        "`--draft-beams`.\n",
        *sorted((line for line in shared if _name(line) not in keys), key=_name),
    ]
    for path, context in found:
        if path == "specdec theory":  # its commands follow
            continue
        about = " ".join(_help(context).partition("\n\n")[0].split())
        shown = "".join(_examples(context)[:1])  # its --help has all
        parts += ["", f"## `{path}`", "", about, "", f"```sh\n{shown}\n```", ""]
        own = (line for line in options[path] if line.partition(" (")[0] not in known)
        elsewhere = keys | ({"lenience", "rule", "draft-beams"} if path == "specdec generate" else set())
        parts += [line for line in own if _name(line) not in elsewhere and not line.startswith("- `STUDY`")]
        if path == "specdec train":
            parts.append(f"Trainers: {', '.join(f'[`{name}`](drafters/{name}.md)' for name in trainers)}.")
    return "\n" + re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n\n"


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
        about = _sentence(text).partition("; may be repeated")[0].removesuffix(".")
        yield f"- `{shown}`: {about}{''.join(f' ({fact})' for fact in facts if fact != 'required')}"


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
