"""`--plugin-timeout` reaches every decoder, of each command that decodes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.interface import ModelError
from specdec_core.measurement import measure as measuring
from specdec_core.study.run import factory

DRAFT = ["--drafter", "prompt-copy"]


def run(arguments):
    return CliRunner().invoke(app, arguments, catch_exceptions=True)


@pytest.mark.parametrize(
    "command",
    [
        ["generate", "def", *DRAFT],
        ["generate", "def"],
        ["measure", *DRAFT],
        ["compare", "examples/quickstart.yaml", "--quiet", "--set", "target=builtin:target"],
    ],
    ids=lambda command: " ".join(command[:1] + command[2:3]),
)
def test_it_reaches_the_decoder(command, monkeypatch):
    limits = []

    def made(*_, plugin_timeout, **__):
        limits.append(plugin_timeout)
        raise ModelError("enough")

    monkeypatch.setattr(factory, "Decoder", made)
    monkeypatch.setattr(measuring, "Decoder", made)
    result = run([*command, "--plugin-timeout", "7"])
    assert limits == [7]
    assert result.exit_code == 2


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_it_is_a_number_of_seconds(seconds):
    result = run(["generate", "def", "--plugin-timeout", seconds])
    assert result.exit_code == 2
