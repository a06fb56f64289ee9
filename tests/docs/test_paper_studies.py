"""The studies of the paper's tables may be run, as far as can be said without the hub."""

import pytest

from specdec_core.study import load_study
from specdec_core.theory import paper
from tests.docs.pages import ROOT

STUDIES = sorted((ROOT / "examples" / "paper").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_is_read(path):
    study = load_study(path)
    builtin = {task.target.model.startswith("builtin:") for task in study.tasks}
    assert builtin == {path.stem.endswith("-builtin")}
    assert f"--output results/{path.stem.removesuffix('-builtin')}" in path.read_text(encoding="utf-8")


def test_every_study_is_there_in_both_forms():
    names = {path.stem for path in STUDIES}
    builtin = {name.removesuffix("-builtin") for name in names if name.endswith("-builtin")}
    assert builtin == names - {f"{name}-builtin" for name in builtin} != set()


def test_the_papers_table_3_is_whole():
    assert len(paper.TABLE_3) == 32
    shared = {(row.task, row.drafter, row.temperature): row.alpha for row in paper.TABLE_3}
    for row in paper.TABLE_4:
        assert shared[row.task, row.drafter, row.temperature] == row.alpha, "Tables 3 and 4 print the same alphas"
