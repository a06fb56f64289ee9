"""The loop of an author in one process: new, edit, compare, stop, install another, resume, export, load."""

from __future__ import annotations

import importlib
from importlib.metadata import distribution, distributions

import pytest
from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.registry import discovery
from specdec_core.registry.registry import default_registry
from specdec_core.study.run.prepared import PreparedRun
from tests import packages
from tests.serving.vllm_runner import Runner, vllm_config

UNUSED = """
    from specdec_core import DrafterConfig, PluginSpec, hookimpl

    @hookimpl
    def specdec_drafters():
        return [PluginSpec("drafter", "unused", "unused_plugin:Unused", DrafterConfig)]
"""
SMALL = ("--set", "prompts.limit=1", "--set", "generation.max_new_tokens=6")


@pytest.fixture
def beside_core(site, monkeypatch):
    """Install into a folder beside what specdec-core brings, and forget modules that were edited."""
    core = distribution("specdec-core").entry_points.select(group="specdec")
    there = lambda: (entry for dist in distributions(path=[str(site.folder)]) for entry in dist.entry_points)  # noqa: E731
    monkeypatch.setattr(discovery, "entry_points", lambda group: [*core, *there()])
    default_registry.cache_clear()
    return site


@pytest.fixture
def measured(monkeypatch):
    """Note which repeats of which runs are decoded; the one whose number is in `stop` is interrupted."""
    seen, stop, measure = [], [], PreparedRun.measure

    def noting(self, number, progress):
        if len(seen) in stop:
            stop.clear()
            raise KeyboardInterrupt
        seen.append((self._job.run.name, number))
        return measure(self, number, progress)

    monkeypatch.setattr(PreparedRun, "measure", noting)
    return seen, stop


def specdec(*words, exit_code=0):
    default_registry.cache_clear()
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == exit_code, result.output
    return result.output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*results. run again. .* the code of its plugins has changed:RuntimeWarning")
def test_the_loop_of_an_author(beside_core, measured, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen, stop = measured
    specdec("new", "last-word")
    packages.install(beside_core.folder, [tmp_path / "specdec-last-word"])
    compare = ("compare", "specdec-last-word/study.yaml", *SMALL, "--output", "results")
    specdec(*compare)
    own = [(f"last-word-gamma={gamma}", repeat) for gamma in (1, 3) for repeat in (1, 2)]
    assert set(own) < set(seen)
    assert ("draft-model", 2) in seen
    seen.clear()
    specdec(*compare)
    assert seen == [], "everything is stored"

    module = beside_core.folder / "specdec_last_word.py"
    beside_core.module("specdec_last_word", edited(module.read_text()))
    stop.append(1)
    assert "resume" in specdec(*compare, exit_code=130)
    assert len(seen) == 1
    beside_core.install("specdec-unused", "unused_plugin", UNUSED)
    specdec(*compare)
    assert sorted(seen) == own, "the runs of the edited drafter are decoded again, each once, and no others"

    said = specdec("export", str(beside_core.folder), "--to", "vllm", "--drafter", "last-word", "--gamma", "3")
    assert "exported_last_word.Proposer" in said
    importlib.invalidate_caches()
    runner = Runner(importlib.import_module("exported_last_word").Proposer(vllm_config(50, gamma=3)), gamma=3)
    runner.add("a", [1, 2, 3], [4])
    runner.step(["a"])
    assert runner.asked[0].draft == (7, 7, 7), "the edited drafter drafts in vLLM"


def edited(source: str) -> str:
    """Return the module with another draft."""
    begin = source.index("        ", source.index("def draft("))
    return f"{source[:begin]}        return [7] * budget\n\n\n{source[source.index('@hookimpl') :]}"
