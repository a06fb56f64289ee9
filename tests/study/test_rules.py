"""The acceptance rule of a run: how it is named, shown and refused."""

from __future__ import annotations

import pytest

from specdec_core.interface import ConfigError
from specdec_core.study import load_study

STUDY = """\
target: builtin:target
prompts: [a b c]
runs:
  - {drafter: random, gamma: 2}
  - {drafter: random, gamma: 2, rule: token}
"""


@pytest.fixture
def write(tmp_path):
    def write_study(text):
        path = tmp_path / "study.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_study


def test_only_a_run_with_a_rule_says_so(write):
    # Results of runs without one are stored by their settings: those must stay as they were.
    plain, ruled = load_study(write(STUDY)).runs[1:]
    assert "rule" not in plain.resolved()
    assert ruled.resolved()["rule"] == {"name": "token"}
    assert (plain.name, ruled.name) == ("random-2", "random-2-token")
    assert (plain.labels.rule, ruled.labels.rule) == (None, "token")


def test_a_rule_may_be_varied_and_set(write):
    text = STUDY + "  - {name: swept, drafter: random, gamma: 4, grid: {rule: [token, {name: token}]}}\n"
    with pytest.raises(ConfigError, match="2 runs are called 'swept-rule=token'"):
        load_study(write(text))
    changed = load_study(write(STUDY), ["runs.0.rule=token", "runs.0.gamma=3"])
    assert changed.runs[1].rule.name == "token"


def test_an_unknown_rule_is_told_where_it_stands(write):
    with pytest.raises(ConfigError, match=r"5:39: runs\[1\].rule: unknown rule 'tokn'. Did you mean 'token'\?"):
        load_study(write(STUDY.replace("rule: token", "rule: tokn")))


def test_the_rule_of_the_paper_is_lossless_and_takes_lenience(write):
    text = STUDY.replace("rule: token", "rule: token, lenience: 0.5")
    load_study(write(text))
    load_study(write("lossless: true\n" + STUDY))
