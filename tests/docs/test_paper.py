"""The page on the paper's tables states what its recorded results show."""

from __future__ import annotations

import re

from specdec_core.study import load_study
from tests.docs.pages import ROOT, load

tables = load(ROOT / "docs" / "paper_tables.py")
paper = tables.paper
FOLDER = ROOT / "examples" / "paper"
STUDIES = {path.stem: load_study(path) for path in sorted(FOLDER.glob("*.yaml"))}


def test_every_study_exists_for_public_checkpoints_and_built_in_models():
    builtin = {name.removesuffix("-builtin") for name in STUDIES if name.endswith("-builtin")}
    assert builtin == STUDIES.keys() - {f"{name}-builtin" for name in builtin} != set()
    for name, study in STUDIES.items():
        models = {task.target.model.startswith("builtin:") for task in study.tasks}
        assert models == {name.endswith("-builtin")}


def test_the_page_has_every_table_and_names_every_study():
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- paper: (\S+) -->", text)) == set(tables.TABLES)
    assert not [name for name in tables.STUDIES if f"`{name}`" not in text]


def test_recorded_results_are_those_of_the_studies():
    for name in tables.STUDIES:
        expected = [(task.name, run.name) for task in STUDIES[f"{name}-builtin"].tasks for run in task.runs]
        assert [(one["task"], one["name"]) for one in tables.read(name)] == expected


def test_greedy_strict_runs_were_exact():
    for study in ("table2", "table3", "table4", "adaptive-gamma", "hierarchy"):
        for one in tables.read(study):
            assert one["temperature"] != 0 or one["quality"]["exact"] == 1.0, (study, one["task"], one["name"])


def test_small_models_are_accepted_more_than_bigrams_and_those_more_than_unigrams():
    found = {}
    for one in tables.drafted("table3"):
        kind = next((n for n in ("unigram", "bigram") if n in one["name"]), "small")
        found.setdefault((one["task"].partition("-")[0], one["temperature"]), {})[kind] = one["alpha"]
    assert len(found) == 6
    assert all(alphas["unigram"] < alphas["bigram"] < alphas["small"] for alphas in found.values())


def test_the_small_model_is_faster_than_the_baseline():
    small = [one for one in tables.drafted("table2") if one["drafter"] == "transformer"]
    assert len(small) == 12
    assert all(one["speedup"] > 1 for one in small)


def test_the_papers_table_3_is_whole():
    assert len(paper.TABLE_3) == 32
    shared = {(row.task, row.drafter, row.temperature): row.alpha for row in paper.TABLE_3}
    assert all(shared[row.task, row.drafter, row.temperature] == row.alpha for row in paper.TABLE_4)


def cells(table: str) -> list[list[str]]:
    """Return the cells of a Markdown table, its headings first."""
    return [line.strip("| \n").split(" | ") for line in table.splitlines() if not line.startswith("|---")]


def test_each_lenience_stands_in_its_column():
    head, *rows = cells(tables.table5())
    shown = {(row[0], row[1], name): cell for row in rows for name, cell in zip(head, row, strict=True)}
    found = list(tables.drafted("table5"))
    assert len(found) == 24
    for one in found:
        name, lenience = one["name"].split("-lenience=")
        cell = shown[str(one["temperature"]), name, f"l = {float(lenience):g}"]
        assert cell == f"{one['alpha']:.2f}/{one['speedup']:.2f}×/{one['deviation']:.2f}"
    assert shown["1", "t5-drafter", "paper's alpha"] == "0.62/0.71/0.76/0.84"


def test_each_gamma_stands_in_its_column():
    head, *rows = cells(tables.table2())
    for row in rows:
        key = (row[0], int(row[1]), {"bigram": "ngram", "small T5": "transformer"}[row[2]])
        for gamma, cell in zip((3, 5, 7), row[4:7], strict=True):
            speeds = [
                f"{one['speedup']:.2f}×"
                for one in tables.drafted("table2")
                if (one["task"].partition("-")[0], one["temperature"], one["drafter"], one["gamma"])
                == (*key, gamma)
            ]
            assert speeds == ([] if cell == "–" else [cell.split()[0]])
    assert head[4:7] == ["speed-up, γ = 3", "γ = 5", "γ = 7"]
