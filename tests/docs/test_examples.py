"""The examples run, and the pages show them as they are."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
import tomllib
from importlib.metadata import EntryPoint, entry_points

import pytest

from specdec_core import Decoder, PluginSpec, Registry, SpecdecError
from specdec_core.study import load_study
from tests.docs.pages import ROOT, blocks
from tests.lossless import SETTINGS, enumerate_continuations, p_value, sample, small_target
from tests.toys import Gamma

EXAMPLES = ROOT / "docs" / "examples"
PLUGIN = EXAMPLES / "specdec-recent"


@pytest.fixture
def recent(monkeypatch):
    """The example plugin's module, found as if it were installed."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    yield importlib.import_module("specdec_recent")
    for module in ("specdec_recent", "test_recent"):
        sys.modules.pop(module, None)


def test_the_example_of_the_readme_is_the_file_that_runs():
    shown = [block.text for block in blocks("python") if block.page == ROOT / "README.md"]
    assert shown == [(EXAMPLES / "first.py").read_text(encoding="utf-8")]


def test_the_first_example_runs(capsys):
    runpy.run_path(str(EXAMPLES / "first.py"), run_name="__main__")
    assert "target calls alone" in capsys.readouterr().out


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_on_pages_can_be_read_and_names_what_there_is(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specdec"):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names)


def test_the_example_plugin_announces_itself_as_its_package_says(recent):
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["specdec"] == {"recent": recent.__name__}
    (spec,) = recent.specdec_drafters()
    assert isinstance(spec, PluginSpec)
    assert spec.factory == f"{recent.__name__}:{recent.Recent.__name__}"


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_example_plugin_gives_the_targets_distribution(recent, setting, batch, device):
    target, sampling = small_target(device), SETTINGS[setting]
    drafter = recent.Recent(recent.RecentConfig(), target.info())
    decoder = Decoder(target, drafter, gamma=Gamma(2), sampling=sampling, strict=True)
    count = 30 if sampling.argmax else 600
    assert p_value(sample(decoder, batch, count), enumerate_continuations(target, sampling)) > 1e-4


def test_the_example_plugins_own_tests_pass(recent):
    tests = importlib.import_module("test_recent")
    tests.test_it_follows_the_trail()
    tests.test_the_text_is_the_targets_own()


def test_the_study_of_the_example_plugin_names_it(recent):
    own = [entry for entry in entry_points(group="specdec") if entry.dist and entry.dist.name == "specdec-core"]
    with pytest.raises(SpecdecError, match="unknown drafter 'recent'"):
        load_study(PLUGIN / "study.yaml", registry=Registry(own))
    registry = Registry([*own, EntryPoint("recent", recent.__name__, "specdec")])
    runs = load_study(PLUGIN / "study.yaml", registry=registry).runs
    assert [run.name for run in runs] == ["plain", "recent-1", "recent-3", "prompt-copy-3"]
