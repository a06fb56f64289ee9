"""Every command stands on the site, with each of its arguments and options."""

from __future__ import annotations

import re

import click
import pytest
import typer

from specdec_core.cli.main import app
from specdec_core.registry import default_registry

TRAINERS = {
    r.name for r in default_registry().records() if r.kind == "trainer" and r.distribution == "specdec-core"
}


def every_command(command=None, path=("specdec",)):
    """All commands that come with specdec, found without the script that writes the page."""
    command = command or typer.main.get_command(app)
    yield " ".join(path), command
    for name in getattr(command, "list_commands", lambda _: ())(click.Context(command)):
        if path[1:] != ("train",) or name in TRAINERS:
            yield from every_command(command.get_command(click.Context(command), name), (*path, name))


COMMANDS = dict(every_command())
PARAMETERS = [(path, parameter) for path, command in COMMANDS.items() for parameter in command.params]


def plain(text: str) -> str:
    """The words of a text, without marks of any kind."""
    return " ".join(re.findall(r"[^\W_]+", text))


@pytest.fixture(scope="session")
def sections(built_site):
    """What the page of commands has between headings: by heading, the elements below it."""
    (content,) = built_site.pages["commands.html"].find("article")
    found, below = {}, []
    for node in content.children:
        if re.fullmatch(r"h[1-6]", node.tag):
            below = found.setdefault(node.text().strip(), [])
        below.append(node)
    return found


def test_the_commands_are_found():
    named = {
        "compare",
        "measure",
        "generate",
        "new",
        "plugins",
        "validate",
        "schema",
        "train ngram",
        "theory speed",
    }
    assert set(COMMANDS) >= {f"specdec {name}" for name in named}
    assert len(PARAMETERS) > 100


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_stands_with_its_usage_and_its_help(sections, path):
    assert path in sections, f"docs/commands.md has no section on {path}"
    text = "\n".join(node.text() for node in sections[path])
    needed = [p.metavar or p.name.upper() for p in COMMANDS[path].params if p.param_type_name == "argument"]
    assert re.search(rf"^{path} \[OPTIONS\]{''.join(rf'.*{name}' for name in needed)}", text, re.MULTILINE)
    for paragraph in COMMANDS[path].help.split("\n\n"):
        assert plain(paragraph) in plain(text), f"{path} leaves out: {paragraph}"


@pytest.mark.parametrize(("path", "parameter"), PARAMETERS, ids=lambda part: getattr(part, "name", part))
def test_an_option_stands_with_its_value_default_and_help(sections, path, parameter):
    rows = [[*row.find("td")] for table in sections[path] for row in table.find("tr")]
    written = {*parameter.opts, *parameter.secondary_opts}
    if parameter.param_type_name == "argument":
        written = {parameter.metavar or parameter.name.upper()}
    (cells,) = [cells for cells in rows if cells and {code.text() for code in cells[0].find("code")} == written]
    value, default, about = (cell.text() for cell in cells[1:])
    said, _, notes = parameter.help.partition("[")
    assert plain(said) in plain(about)
    assert value == "–" if getattr(parameter, "is_flag", False) else value not in ("", "–")
    if parameter.required:
        assert default == "required"
    elif noted := re.search(r"default: ([^];]+)", notes):
        assert default.removeprefix("--") == noted[1]
    else:
        none = parameter.default is None or parameter.default is False or parameter.default in ([], ())
        assert default == ("–" if none else str(parameter.default))
    for note in re.split(r"[];] ?", notes):
        if not note.startswith("default: "):
            assert all(
                plain(part) in plain(f"{value} {about}").lower()
                for part in note.removeprefix("one of ").split(", ")
            )


def test_nothing_stands_there_that_there_is_not(sections):
    shown = {heading for heading in sections if heading.startswith("specdec")}
    assert shown == set(COMMANDS)
    for path in shown:
        rows = [row for table in sections[path] for row in table.find("tr") if [*row.find("td")]]
        assert len(rows) == len(COMMANDS[path].params), f"{path} has rows too many, or too few"
