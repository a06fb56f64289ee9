"""The benchmarks that continue where they stopped: what they write, what they leave alone, what they refuse."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from tests.docs.pages import ROOT

TINY = [
    "--sizes",
    "10M",
    "--configurations",
    "packed",
    "--temperatures",
    "0",
    "--tokens",
    "4",
    "--quick",
    "--threads",
    "1",
]


@pytest.fixture
def benchmark(monkeypatch):
    """Import a script of the benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def run(script, monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", [script.__name__, *map(str, words)])
    script.main()
    return json.loads(capsys.readouterr().out)


def test_the_comparison_with_transformers_is_complete_and_continues(benchmark, monkeypatch, capsys, tmp_path):
    script, out = benchmark("vs_transformers"), tmp_path / "results.json"
    first = run(script, monkeypatch, capsys, *TINY, "--batch-sizes", "1", "--out", out)
    (group,) = first["rows"]
    assert {(row["method"], row["against"]) for row in group["rows"]} == {
        (method, method) for method in ("baseline", "assisted", "lookup")
    }
    for row in group["rows"]:
        *parts, measured = row["gap_ms_per_token"].values()
        assert sum(parts) == pytest.approx(measured, abs=1e-3)
        assert row["specdec_tokens_per_second"]["median"] == pytest.approx(1e3 / measured, rel=0.01)
        assert row["block_efficiency"]["specdec"] == pytest.approx(row["block_efficiency"]["transformers"])
    second = run(script, monkeypatch, capsys, *TINY, "--batch-sizes", "1", "2", "--out", out)
    assert second["rows"][0] == group  # not measured again
    assert [row["against"] for row in second["rows"][1]["rows"]] == ["baseline"] * 3
    assert second["summary"]["assisted"]["rows"] == 2
    assert json.loads(out.read_text()) == second
    with pytest.raises(SystemExit, match="other settings"):
        run(script, monkeypatch, capsys, *TINY, "--gamma", "2", "--out", out)


def test_a_file_of_something_else_is_refused(benchmark, tmp_path):
    path = tmp_path / "notes.json"
    path.write_text("[1, 2]")
    with pytest.raises(SystemExit, match="holds no results"):
        benchmark("_common").Results(path, "accelerator", {})
    assert path.read_text() == "[1, 2]"
