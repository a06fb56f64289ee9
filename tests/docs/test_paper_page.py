"""The page on the paper's tables says what was measured."""

import re

from specdec_core.study import load_study
from tests.docs.pages import ROOT, load

tables = load(ROOT / "docs" / "paper_tables.py")


def test_the_page_has_every_table_and_names_every_study():
    (page,) = tables.PAGES
    text = page.read_text(encoding="utf-8")
    shown = set(re.findall(r"<!-- paper: (\S+) -->", text))
    assert shown == set(tables.TABLES)
    for path in (ROOT / "examples" / "paper").glob("*.yaml"):
        assert path.name in text


def test_what_was_kept_is_what_the_studies_say():
    for name in tables.STUDIES:
        study = load_study(ROOT / "examples" / "paper" / f"{name}-builtin.yaml")
        expected = [(task.name, run.name) for task in study.tasks for run in task.runs]
        assert [(one["task"], one["name"]) for one in tables.read(name)] == expected


def test_what_every_claim_of_exactness_rests_on():
    for study in ("table2", "table3", "table4", "adaptive-gamma", "hierarchy"):
        for one in tables.read(study):
            if one["temperature"] == 0:
                assert one["quality"]["exact"] == 1.0, (study, one["task"], one["name"])


def test_what_the_page_says_of_the_order_of_drafters():
    found = {}
    for one in tables.drafted("table3"):
        key = one["task"].partition("-")[0], one["temperature"]
        found.setdefault(key, {})[next((n for n in ("unigram", "bigram") if n in one["name"]), "small")] = one[
            "alpha"
        ]
    assert len(found) == 6
    for alphas in found.values():
        assert alphas["unigram"] < alphas["bigram"] < alphas["small"]


def test_what_the_page_says_of_speed():
    small = [one for one in tables.drafted("table2") if one["drafter"] == "transformer" and one["gamma"] < 5]
    assert len(small) == 8
    assert all(one["speedup"] > 1 for one in small)
