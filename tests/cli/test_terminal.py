"""Output of every command on terminals of all kinds: narrow, without Unicode, closed early."""

import re

import pytest
import typer

from specdec_core.cli.main import app
from tests.commands import run_command


@pytest.fixture
def specdec(toys, monkeypatch):
    def run(*arguments, columns=None, **kwargs):
        if columns is not None:
            monkeypatch.setenv("COLUMNS", str(columns))
        return run_command(*arguments, **kwargs)

    return run


STUDY = """
target: builtin:target
prompts: [a b c]
runs:
  - {name: one, drafter: echo, gamma: 2}
  - {name: "a-run-with-a-long-name", drafter: echo, gamma: 2, draft_sampling: {temperature: 0.5}}
"""


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


@pytest.mark.parametrize("columns", [40, 100])
def test_validate_cuts_nothing(specdec, study, columns):
    text = " ".join(specdec("validate", study, columns=columns).stdout.split())
    assert "…" not in text
    for value in ("a-run-with-a-long-name", "echo(token=1, breaks=False)", "fixed(gamma=2)", "temperature=0.5"):
        assert value in text
    wide = specdec("validate", study, "--wide", columns=columns).stdout
    assert re.search(r"long-name +echo\(token=1, breaks=False\) +fixed\(gamma=2\) .* temperature=0\.5", wide)


COMMANDS = typer.main.get_command(app)


def commands(command=COMMANDS, path=()):
    yield path
    for name, one in getattr(command, "commands", {}).items():
        yield from commands(one, (*path, name))


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_commands_in_the_help_can_be_copied(specdec, path):
    result = specdec(*path, "--help", columns=80)
    assert result.exit_code == 0
    shown = {line.strip() for line in result.stdout.splitlines()}
    command = COMMANDS
    for name in path:
        command = command.commands[name]
    about = command.help or command.callback.__doc__ or ""
    for block in re.findall(r"```\n(.*?)```", about, re.DOTALL):
        for line in block.splitlines():
            assert line.strip() in shown, "a command must not be wrapped; continue it with a backslash"
