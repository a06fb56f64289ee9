"""What the pages for authors show is what there is: the scaffold, the kit, the border's version, the fields."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from typer.testing import CliRunner

from specdec_core import BORDER_VERSION, Capabilities, DeterministicDrafter, PluginConfig, PluginSpec
from specdec_core.cli.main import app
from specdec_core.testing import DrafterSubject, run_checks
from tests.docs.pages import ROOT, blocks
from tests.installed import site  # noqa: F401
from tests.packages import install, run

DRAFTER = ROOT / "docs" / "write-a-drafter.md"
SHOWN = [block.text for block in blocks("text") if block.page == DRAFTER]
EXAMPLES = ROOT / "docs" / "examples"


def test_what_the_scaffold_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECDEC_PLUGINS", "specdec-core")
    commands = [block.text.split() for block in blocks("sh") if block.page == DRAFTER]
    assert commands[0][:2] == ["specdec", "new"]
    assert CliRunner().invoke(app, commands[0][1:]).stdout == SHOWN[0]


class OneMore(DeterministicDrafter):
    """Gives one token more than it was asked for."""

    def draft(self, tokens, budget):
        return [2] * (budget + 1)


def test_what_a_check_says_that_fails():
    subject = DrafterSubject(lambda target: OneMore(PluginConfig(), target))
    (result,) = run_checks(subject, select=("budget-respected",)).results
    assert result.outcome == "failed"
    assert f"{result.check.name}: {result.check.summary}\n\n{result.message}\n" == SHOWN[1]


def test_what_is_said_of_a_plugin_for_another_border(site, monkeypatch):  # noqa: F811
    monkeypatch.setenv("COLUMNS", "500")
    site.install("specdec-future", "specdec_future", 'SPECDEC_BORDER = "2.0"\n')
    shown = CliRunner().invoke(app, ["plugins"]).stdout
    assert shown.splitlines()[-1] + "\n" == SHOWN[2]
    assert f'SPECDEC_BORDER = "{BORDER_VERSION}"' in DRAFTER.read_text(encoding="utf-8")
    assert CliRunner().invoke(app, ["--version"]).stdout.endswith(f"plugin border {BORDER_VERSION}\n")


@pytest.mark.parametrize("made", [PluginSpec, Capabilities], ids=lambda made: made.__name__)
def test_the_tables_have_every_field(made):
    text = DRAFTER.read_text(encoding="utf-8").partition("### What a plugin announces")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    fields = dataclasses.fields(made)
    assert [name for name in rows if name in {field.name for field in fields}] == [field.name for field in fields]
    for field in fields if made is Capabilities else ():
        assert rows[field.name] == {None: "any", True: "true", False: "false"}[field.default]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("package", ["specdec-recent", "specdec-follow"])
def test_the_packages_of_the_pages_pass_their_tests_on_the_kit(tmp_path, package):
    install(tmp_path / "site", [EXAMPLES / package])
    options = ["-m", "pytest", "-p", "no:cacheprovider", "-rA", "--timeout=0"]
    done = run(tmp_path / "site", *options, EXAMPLES / package, folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"PASSED .*::test_conforms\[lossless\]", done.stdout)
    assert re.search(r"PASSED .*::test_it_", done.stdout)


def test_the_packages_of_the_pages_are_listed(tmp_path):
    install(tmp_path / "site", [EXAMPLES / name for name in ("specdec-recent", "specdec-follow", "specdec-pairs")])
    main = "from specdec_core.cli.main import main; main()"
    done = run(tmp_path / "site", "-c", main, "plugins", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    records = [record for record in json.loads(done.stdout) if record["distribution"] != "specdec-core"]
    assert {(record["kind"], record["name"]) for record in records} == {
        ("drafter", "recent"),
        ("gamma", "follow"),
        ("lenience", "late"),
        ("drafter", "pairs"),
        ("trainer", "pairs"),
    }
    assert all(record["state"] == "ready" and record["summary"] for record in records)
