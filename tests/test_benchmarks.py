"""The benchmarks that continue where they stopped: what they write, what they leave alone, what they refuse."""

import importlib
import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext

import pytest

from specdec_core.models import load_model
from tests.docs.pages import ROOT, load

TINY = [*("--sizes", "10M", "--configurations", "packed", "--temperatures", "0")]
TINY += ["--tokens", "4", "--quick", "--threads", "1"]
SMOKE = ["--device", "cpu", "--dtype", "float32", "--tiny"]


@pytest.fixture
def benchmark(monkeypatch):
    """Import a script of the benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def run(script, monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", [script.__name__, *map(str, words)])
    script.main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
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


@pytest.mark.slow
def test_engines_take_turns_and_their_texts_are_compared(benchmark, monkeypatch, capsys, tmp_path):
    save, script = benchmark("engines.save"), benchmark("vs_engines")
    monkeypatch.setattr(script, "ENVIRONMENTS", tmp_path)
    monkeypatch.setitem(script.PRECISIONS["specdec"], "float32", ["float32"])
    monkeypatch.setitem(script.PRECISIONS, "transformers", {"float32": ["float32", "float31"]})
    drafter = load_model("builtin:drafter")
    save.save(drafter, drafter.model, tmp_path / "models" / "tiny" / "drafter")
    save.save(drafter, save.inflated(drafter.model, 3, 1024), tmp_path / "models" / "tiny" / "target")
    words = "--models tiny --engines specdec transformers --precisions float32 --tokens 9 --gammas 2 --ngrams 2"
    words = [*words.split(), "--prompts", "2", "--rounds", "1", "--threads", "1"]
    (group,) = run(script, monkeypatch, capsys, *words, "--out", tmp_path / "vs_engines.json")["rows"]
    assert list(group["refused"]) == ["transformers float31"]
    assert "float31" in group["refused"]["transformers float31"]
    found = {(row["engine"], row["method"]): row for row in group["rows"]}
    assert len(found) == 7
    assert {row["equal_texts"] for row in found.values()} == {"2 of 2"}
    assert all(row["tokens_per_second"]["min"] > 0 for row in found.values())
    for engine in ("specdec", "transformers"):  # the draft model is the target: two drafted tokens and another
        assert found[engine, "plain"]["target_passes"] == 18
        assert found[engine, "draft"]["target_passes"] == 6
    tables = load(ROOT / "docs" / "benchmark_tables.py")
    monkeypatch.setattr(tables, "DATA", tmp_path)
    monkeypatch.setattr(tables, "speedup", lambda *_: 1.0)  # nine tokens are too few to be within the bound
    text = tables.engines()
    ours, theirs = (line for line in text.splitlines() if line.startswith(("| specdec", "| transformers")))
    assert (ours + theirs).count("**") == 2 * 4  # the fastest of each column
    assert "tiny, float32, 2 of 2 texts equal:" in text


@pytest.mark.parametrize(("passes", "bound"), [((32, 8), 4), ((None, None), 6)])
def test_a_speed_up_above_the_tokens_per_target_pass_is_refused(passes, bound, monkeypatch, tmp_path):
    measured = json.loads((ROOT / "docs" / "data" / "vs_engines.json").read_text(encoding="utf-8"))
    rows = {row["method"]: row for row in measured["rows"][0]["rows"] if row["engine"] == "specdec"}
    plain, drafted = measured["rows"][0]["rows"] = [rows["plain"], rows["draft"] | {"settings": {"gamma": 5}}]
    plain["target_passes"], drafted["target_passes"] = passes
    refused = pytest.raises(ValueError, match=r"specdec \S+ draft: .* Measure both again")
    tables = load(ROOT / "docs" / "benchmark_tables.py")
    for excess, outcome in ((1.02, nullcontext()), (1.04, refused)):
        drafted["tokens_per_second"] = {"median": excess * bound * plain["tokens_per_second"]["median"]}
        monkeypatch.setattr(tables, "DATA", folder := tmp_path / str(excess))
        folder.mkdir()
        (folder / "vs_engines.json").write_text(json.dumps(measured), encoding="utf-8")
        with outcome:
            assert tables.front()


def test_prompt_lookup_copies_what_followed_the_longest_most_recent_match(benchmark):
    copied = benchmark("engines.lookup").copied
    assert copied([1, 2, 3, 7, 2, 3, 8, 2, 3], 2, ngram=2) == [8, 2]
    assert copied([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 3, ngram=3) == [7, 2, 3]
    assert copied([1, 2, 3], 2, ngram=2) == []


def test_a_file_of_something_else_is_refused(benchmark, tmp_path):
    path = tmp_path / "notes.json"
    path.write_text("[1, 2]")
    with pytest.raises(SystemExit, match="holds no results"):
        benchmark("_common").Results(path, "accelerator", {})
    assert path.read_text() == "[1, 2]"


@pytest.mark.slow
def test_the_commands_for_a_gpu_run_and_continue(tmp_path, monkeypatch):
    def measured(*words):
        command = [str(ROOT / "benchmarks" / "gpu" / "run"), *words, *SMOKE, "--out", str(tmp_path / "gpu")]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable}
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (path,) = (tmp_path / "gpu").glob(f"{words[0]}*.json")
        return json.loads(path.read_text())

    first = measured("speed", "--only", "110 1 eager")
    assert [row["key"]["method"] for row in first["rows"]] == ["plain", "transformer", "prompt-copy", "eagle3"]
    assert not first["missing"]
    assert measured("speed", "--only", "110 1 eager") == first  # not measured again
    assert measured("correctness", "--only", "lossless")["rows"][0]["passed"] > 9
    tables = load(ROOT / "docs" / "benchmark_tables.py")
    monkeypatch.setattr(tables, "DATA", tmp_path)
    assert tables.accelerator().count("| tiny | 110 | 1 | eager |") == 4


def test_what_was_recorded_once_says_how_and_where_and_stands_on_a_page():
    recorded = json.loads((ROOT / "docs" / "data" / "recorded.json").read_text(encoding="utf-8"))
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    for name, found in recorded.items():
        pattern = r"python (benchmarks/\w+\.py)|specdec (?:compare (\S+)|(?:replay|train) )"
        script = re.match(pattern, found["command"])
        assert script, name
        assert (ROOT / (script[1] or script[2] or "")).exists()
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", found["date"])
        assert found["machine"]
        assert all(row.keys() >= set(found.get("columns", ())) for row in found["rows"])
        assert ("columns" in found) == (f"<!-- measured: {name} -->" in pages), name


def test_the_parts_of_a_step_that_overhead_times_exist(benchmark):
    script = benchmark("overhead")
    with script.timed_parts(script.Clock(), script.INNER_PARTS):
        assert {label for _, _, label in script.INNER_PARTS} >= {"acceptance", "random numbers"}
