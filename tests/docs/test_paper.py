"""The page on the paper's tables states what its recorded results show."""

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
    pages = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("paper.md", "theory.md")]
    assert set(re.findall(r"<!-- paper: (\S+) -->", "".join(pages))) == set(tables.TABLES)
    assert not [name for name in tables.STUDIES if f"`{name}`" not in pages[0]]


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
