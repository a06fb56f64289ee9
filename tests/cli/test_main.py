"""Commands that load no model, and what becomes of errors."""

import json
import sys

import pytest

from specdec_core.cli import main as module
from tests.commands import run_command

GOOD = """\
target: builtin:target
prompts: [a b c]
runs:
  - {drafter: echo, gamma: 2, draft_sampling: {temperature: 0.5}}
"""


@pytest.fixture
def specdec(toys):
    def run(*arguments, **kwargs):
        return run_command(*arguments, **kwargs)

    return run


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(GOOD)
    return path


def test_plugins_are_listed(specdec, toys):
    toys.install("dist-a", "broken_plugin", "import nowhere_to_be_found")
    result = specdec("plugins")
    assert result.exit_code == 0
    assert "Always the same token." in result.stdout
    assert "broken_plugin: ModuleNotFoundError: No module named 'nowhere_to_be_found'" in result.stdout


def test_plugins_as_json(specdec, toys):
    twin = """
        from specdec_core import DrafterConfig, PluginSpec, hookimpl

        @hookimpl
        def specdec_drafters():
            return [PluginSpec("drafter", "echo", "twin:Twin", DrafterConfig)]
    """
    toys.install("dist-a", "twin_plugin", twin)
    records = json.loads(specdec("plugins", "--json").stdout)
    assert {"kind", "name", "distribution", "version", "state", "reason", "summary"} <= set(records[0])
    clash = [record for record in records if record["name"] == "echo"]
    assert [record["distribution"] for record in clash] == ["dist-a", "specdec-toys"]
    assert {record["state"] for record in clash} == {"conflict"}
    assert "claimed by dist-a 1.0" in clash[0]["reason"]


def test_validate_shows_the_runs(specdec, study):
    result = specdec("validate", study, "--set", "runs.0.gamma=5")
    assert result.exit_code == 0
    assert "2 runs of 1 prompt(s) on builtin:target" in result.stdout
    for cell in ("baseline", "echo(token=1, breaks=False)", "fixed(gamma=5)", "temperature=0.5", "1 (lossless)"):
        assert cell in result.stdout


def test_a_bad_study_has_file_line_and_column_and_no_traceback(specdec, study):
    study.write_text(GOOD.replace("gamma: 2", "gamma: -2").replace("target:", "targt:"))
    for command in ("validate", "compare"):
        result = specdec(command, study)
        assert result.exit_code == 2
        assert f"{study}:1:1: unknown key 'targt'. Did you mean 'target'?" in result.stderr
        assert f"{study}:4:28: runs[0].gamma: input should be greater than or equal to 0" in result.stderr
        assert "Traceback" not in result.output


@pytest.mark.parametrize("where", [("--debug", "validate"), ("validate", "--debug")])
def test_debug_shows_the_traceback(specdec, tmp_path, where):
    result = specdec(*where, tmp_path / "missing.yaml")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "ConfigError" in result.stderr


def test_a_missing_file_and_unknown_options_exit_with_2(specdec, tmp_path):
    result = specdec("validate", tmp_path / "missing.yaml")
    assert result.exit_code == 2
    assert "the file does not exist" in result.stderr
    assert specdec("compare", "--nonsense").exit_code == 2
    assert specdec("comparre").exit_code == 2


def test_the_schema_is_json(specdec):
    schema = json.loads(specdec("schema").stdout)
    assert schema["title"] == "specdec study"
    assert "EchoDrafter" in schema["$defs"]


def test_the_version(specdec):
    assert specdec("--version").stdout.startswith("specdec ")


def test_a_defect_is_called_one(monkeypatch, capsys):
    def fail(**_):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(module, "app", fail)
    monkeypatch.setattr(sys, "argv", ["specdec"])
    with pytest.raises(SystemExit) as caught:
        module.main()
    assert caught.value.code == 1
    said = capsys.readouterr().err
    assert "internal error: ZeroDivisionError: oops" in said
    assert "Traceback" not in said
    monkeypatch.setattr(sys, "argv", ["specdec", "--debug"])
    with pytest.raises(ZeroDivisionError):
        module.main()
