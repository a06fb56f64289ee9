"""The examples run, and the pages show them as they are."""

from __future__ import annotations

import ast
import importlib
import json
import re
import runpy
import shutil
import sys
import textwrap
import tomllib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specdec_core import (
    BORDER_VERSION,
    Decoder,
    GenerationSettings,
    PluginSpec,
    Registry,
    SpecdecError,
)
from specdec_core.cli.main import app
from specdec_core.study import load_study, run_model
from tests.docs.pages import ROOT, blocks, load
from tests.drafters.support import assert_as_fresh, info_for, request_for, rows_of
from tests.installed import site  # noqa: F401
from tests.lossless import SETTINGS, VOCAB, enumerate_continuations, p_value, sample, small_target
from tests.toys import Gamma

outputs = load(ROOT / "docs" / "outputs.py")

EXAMPLES = ROOT / "docs" / "examples"
PLUGIN = EXAMPLES / "specdec-recent"
PAIRS = EXAMPLES / "specdec-pairs"


@pytest.fixture
def recent(monkeypatch):
    """The example plugin's module, found as if it were installed."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    yield importlib.import_module("specdec_recent")
    sys.modules.pop("specdec_recent", None)


def test_the_example_of_the_readme_is_the_file_that_runs():
    shown = [block.text for block in blocks("python") if block.page == ROOT / "README.md"]
    assert shown == [(EXAMPLES / "first.py").read_text(encoding="utf-8")]


def test_the_first_example_runs(capsys):
    runpy.run_path(str(EXAMPLES / "first.py"), run_name="__main__")
    shown = [output.text for output in outputs.shown(ROOT / "README.md") if "first.py" in output.command]
    assert [capsys.readouterr().out.strip("\n")] == shown


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


def test_the_example_plugin_is_as_small_as_is_said(recent):
    lines = Path(recent.__file__).read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if line.strip() and not re.match(r'\s*"""|from |import ', line)]
    assert len(code) <= 20
    assert recent.SPECDEC_BORDER == BORDER_VERSION


def test_the_study_of_the_example_plugin_names_it(recent):
    own = [entry for entry in entry_points(group="specdec") if entry.dist and entry.dist.name == "specdec-core"]
    with pytest.raises(SpecdecError, match="unknown drafter 'recent'"):
        load_study(PLUGIN / "study.yaml", registry=Registry(own))
    registry = Registry([*own, EntryPoint("recent", recent.__name__, "specdec")])
    runs = load_study(PLUGIN / "study.yaml", registry=registry).runs
    assert [run.name for run in runs] == ["plain", "recent-1", "recent-3", "prompt-copy-3"]


@pytest.fixture
def installed(site):  # noqa: F811
    """What ships and the plugins of the tutorial's second half, as if they were installed."""
    for path in (EXAMPLES / "parts.py", PAIRS / "specdec_pairs.py"):
        shutil.copy(path, site.folder)
    own = [entry for entry in entry_points(group="specdec") if entry.dist and entry.dist.name == "specdec-core"]
    return Registry([*own, *(EntryPoint(name, name, "specdec") for name in ("parts", "specdec_pairs"))])


@pytest.fixture
def drafter_of(installed, tmp_path):
    """Makes a drafter of the tutorial for a target, from what a study would say."""
    table = {"2": {"3": 4, "5": 1}, "3": {"5": 2}, "0": {"0": 1, "1": 3, "2": 9}}
    (tmp_path / "table.json").write_text(json.dumps(table), encoding="utf-8")
    pairs = {"name": "pairs", "table": "table.json"}
    written = {"pairs": pairs, "cap": {"name": "cap", "drafter": pairs, "most": 1}}
    run = run_model(installed)

    def make(name, target):
        config = run.model_validate({"drafter": written.get(name, name), "gamma": 2}).drafter
        return installed.create("drafter", name, config, target.info(tmp_path))

    return make


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["pairs", "second-thought", "cap", "trail", "fading"])
def test_the_drafters_of_the_tutorial_give_the_targets_distribution(drafter_of, name, setting, batch, device):
    target, sampling = small_target(device), SETTINGS[setting]
    decoder = Decoder(target, drafter_of(name, target), gamma=Gamma(2), sampling=sampling, strict=True)
    count = 30 if sampling.argmax else 600
    assert p_value(sample(decoder, batch, count), enumerate_continuations(target, sampling)) > 1e-4
    length = GenerationSettings(max_new_tokens=12, ignore_eos=True)
    assert decoder.generate([[2, 3, 5, 2]], length).metrics.drafted > 0


def test_q_of_the_table_is_what_its_counts_say(drafter_of):
    target = small_target("cpu")
    proposal = drafter_of("pairs", target).open(info_for(2, VOCAB)).propose(request_for([[2], [4]], [1, 1]))
    # Five were counted after 2, and all other tokens weigh as much as one that came once; 4 never came.
    weights = torch.tensor([1 / 6, 1 / 6, 1 / 6, 4, 1 / 6, 1])
    torch.testing.assert_close(proposal.q.probabilities[0, 0], weights / weights.sum())
    torch.testing.assert_close(proposal.q.probabilities[1, 0], torch.full((VOCAB,), 1 / VOCAB))


def test_what_is_capped_is_asked_for_no_more(drafter_of):
    target = small_target("cpu")
    decoder = Decoder(target, drafter_of("cap", target), gamma=Gamma(3), strict=True)
    metrics = decoder.generate([[2, 3, 5]], GenerationSettings(max_new_tokens=8, ignore_eos=True)).metrics
    assert 0 < metrics.drafted <= metrics.target_calls


def test_the_trail_is_that_of_a_fresh_session_after_commits_and_rollbacks(drafter_of):
    drafter, info = drafter_of("trail", small_target("cpu")), info_for(2, VOCAB)
    session, tokens = drafter.open(info), [[2, 3, 2, 4], [1, 5]]
    session.propose(request_for(tokens, [2, 2]))
    tokens = [[2, 3, 2, 4, 2, 5, 2], [1, 5, 1]]
    assert_as_fresh(drafter, info, session, tokens)
    # 2 was followed by 5 in what is forgotten, and by 4 before.
    session.rollback([5, 3])
    tokens = [[2, 3, 2, 4, 2], [1, 5, 1]]
    assert_as_fresh(drafter, info, session, tokens)
    assert rows_of(session.propose(request_for(tokens, [1, 1]))) == [[4], [5]]
    session.rollback([9, 9])
    assert_as_fresh(drafter, info, session, tokens)


def test_the_session_of_the_tutorial_is_that_of_a_fresh_one_after_commits_and_rollbacks(drafter_of):
    target = small_target("cpu")
    drafter, info = drafter_of("fading", target), info_for(2, VOCAB)
    session, tokens = drafter.open(info), [[2, 3, 2, 4], [1, 5]]
    session.propose(request_for(tokens, [2, 3]))
    assert_as_fresh(drafter, info, session, tokens)
    tokens = [[2, 3, 2, 4, 2, 5, 2], [1, 5, 1]]
    assert_as_fresh(drafter, info, session, tokens)
    session.rollback([5, 3])
    assert_as_fresh(drafter, info, session, [[2, 3, 2, 4, 2], [1, 5, 1]])


def test_the_trainer_of_the_tutorial_makes_what_its_drafter_reads(installed, monkeypatch, tmp_path):
    monkeypatch.setattr("specdec_core.cli.train.default_registry", lambda: installed)
    monkeypatch.chdir(tmp_path)
    Path("text.py").write_text("import os\nimport sys\nimport re\n", encoding="utf-8")
    command = ["train", "pairs", "--text", "text.py", "--output", "table.json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert '{name: pairs, table: "table.json"}' in result.stdout
    study = Path("study.yaml")
    shown = textwrap.dedent(result.stdout.split(":\n\n")[-1])
    study.write_text(f"target: builtin:target\nprompts: [import]\n{shown}", encoding="utf-8")
    assert [run.name for run in load_study(study, registry=installed).runs] == ["plain", "pairs-4"]
    again = CliRunner().invoke(app, command)
    assert (again.exit_code, "--overwrite replaces it" in again.stderr) == (2, True)
    Path("text.py").write_text("a", encoding="utf-8")
    assert CliRunner().invoke(app, [*command, "--overwrite"]).exit_code == 2
    assert json.loads(Path("table.json").read_text(encoding="utf-8"))


def test_the_plugins_of_the_tutorial_announce_themselves(installed):
    project = tomllib.loads((PAIRS / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["specdec"] == {"pairs": "specdec_pairs"}
    made = {record.name: record.state for record in installed.records() if record.distribution != "specdec-core"}
    assert set(made) == {"pairs", "second-thought", "cap", "trail", "fading"}
    for name in ("second-thought", "trail"):
        spec = installed.spec("drafter", name)
        module, _, kind = spec.factory.partition(":")
        drafter = getattr(importlib.import_module(module), kind)
        assert drafter.needs_hidden_states == spec.capabilities.needs_hidden_states
