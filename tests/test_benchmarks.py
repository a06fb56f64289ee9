"""The benchmarks that continue where they stopped: what they write, what they leave alone, what they refuse."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT, load

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
SMOKE = ["--device", "cpu", "--dtype", "float32", "--smoke", "--modes", "eager"]


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


@pytest.mark.slow
def test_rows_that_failed_or_were_left_out_are_made_up_for(benchmark, monkeypatch, tmp_path):
    script = benchmark("accelerator")
    left_out = script.LeftOutError
    called = []

    def job(name, error=None):
        def measure():
            called.append(name)
            if error is not None:
                raise error
            return {"value": name}

        return {"part": "verify", "target": name}, measure

    options = argparse.Namespace(
        out=tmp_path / "results.json",
        device="cpu",
        dtype="float32",
        smoke=True,
        modes=["eager"],
        parts=["verify"],
        child=60.0,
    )
    todo = [job("broken", ValueError("no kernel")), job("large", left_out("takes 14 GB")), job("fine")]
    monkeypatch.setattr(script, "jobs", lambda options, parts: todo)
    script.run_part(options, script.open_results(options))
    assert called == ["broken", "large", "fine"]
    missing = script.missing(options, script.open_results(options))
    assert missing == {"verify target=broken": "ValueError: no kernel", "verify target=large": "takes 14 GB"}

    todo = [job("broken"), job("large"), job("fine"), job("new")]
    script.run_part(options, script.open_results(options))
    assert called[3:] == ["new", "broken", "large"]
    assert not script.missing(options, script.open_results(options))

    todo = [job("later")]
    options.child = 0.0  # no time
    script.run_part(options, script.open_results(options))
    assert script.missing(options, script.open_results(options)) == {"verify target=later": "its part had 0 s"}


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_runs_and_its_tables_are_drawn(tmp_path, monkeypatch):
    def measured(*words):
        command = [sys.executable, str(ROOT / "benchmarks" / "accelerator.py"), *SMOKE, *words]
        done = subprocess.run(
            [*command, "--out", str(tmp_path / "accelerator.json")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert {row["key"]["part"] for row in measured("--parts", "verify")["rows"]} == {"verify"}
    found = measured()
    assert not found["missing"]
    assert [row["counts"].keys() for row in found["rows"] if row["key"]["part"] == "tests"] == [{"passed"}]
    assert measured()["rows"] == found["rows"]
    tables = load(ROOT / "docs" / "benchmark_tables.py")
    monkeypatch.setattr(tables, "DATA", tmp_path)
    drawn = tables.accelerator()
    assert drawn.count("\n| tiny |") == 1 + 2 * 2  # T(k), and the baseline and a drafter at two batch sizes
    assert "has not run on a GPU" not in drawn


def speeds_over_plain_decoding(data, sizes):
    """Return the cells that a table must have: all methods of both libraries, packed and unpacked apart."""
    expected = []
    for group in data["rows"]:
        if group["key"]["batch_size"] == 1 and group["key"]["size"] in sizes:
            rows = {(row["configuration"], row["method"]): row for row in group["rows"]}
            for method in ("baseline", "lookup", "assisted"):
                cells = [f"{group['key']['temperature']:g}"]
                for configuration, name in (
                    ("plain", "transformers"),
                    ("plain", "specdec"),
                    ("packed", "specdec"),
                ):
                    speed, plain = (
                        rows[configuration, one][f"{name}_tokens_per_second"]["median"]
                        for one in (method, "baseline")
                    )
                    cells.append(f"{speed:.0f}" + ("" if method == "baseline" else f" ({speed / plain:.1f}×)"))
                expected.append(cells)
    assert {row["method"] for group in data["rows"] for row in group["rows"]} == {"baseline", "lookup", "assisted"}
    return expected


def test_the_headline_table_has_every_method_and_each_library_over_its_own_plain_decoding():
    data = json.loads((ROOT / "docs" / "data" / "vs_transformers.json").read_text())
    expected = speeds_over_plain_decoding(data, ["60M"])
    assert len(expected) == 2 * 3
    for page, shown in (("README.md", "readme"), ("docs/index.md", "front")):
        text = (ROOT / page).read_text(encoding="utf-8")
        part = text.split(f"<!-- measured: {shown} -->")[1].split("<!-- end of measured -->")[0]
        rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
        assert rows[0][2:] == ["transformers", "specdec, unpacked", "specdec, packed"]
        assert [row[1:] for row in rows[1:]] == expected
        assert data["date"] in part


def test_the_page_shows_every_method_of_both_libraries_and_where_specdec_is_slower():
    data = json.loads((ROOT / "docs" / "data" / "vs_transformers.json").read_text())
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    part = text.split("<!-- measured: against -->")[1].split("<!-- end of measured -->")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    assert [[row[0], *row[2:]] for row in rows[1:]] == speeds_over_plain_decoding(data, ["350M"])
    slower = [row for group in data["rows"] for row in group["rows"] if row["ratio"]["median"] < 1]
    assert f"In {len(slower)} of " in part
    assert all(f"{row['ratio']['median']:.3f}" in part for row in slower)


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
