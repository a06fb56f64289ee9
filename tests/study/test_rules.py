"""The acceptance rule of a run: how it is named, shown and refused."""

import pytest

from specdec_core.interface import ConfigError
from specdec_core.study import compare, load_study
from specdec_core.study.report.html_report import report_page

STUDY = """\
target: builtin:target
prompts: [a b c]
runs:
  - {drafter: random, gamma: 2}
  - {drafter: random, gamma: 2, rule: token}
"""


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
    with pytest.raises(ConfigError, match=r"5:39: runs.1..rule: unknown rule 'tokn'. Did you mean 'token'"):
        load_study(write(STUDY.replace("rule: token", "rule: tokn")))


def test_the_rule_of_the_paper_is_lossless_and_takes_lenience(write):
    load_study(write(STUDY.replace("rule: token", "rule: token, lenience: 0.5")))
    load_study(write("lossless: true\n" + STUDY))


@pytest.mark.parametrize("rule", ["block", "rejection", "typical", "top-k"])
def test_other_rules_refuse_lenience_below_1(write, rule, problems):
    text = STUDY.replace("rule: token", f"rule: {rule}, lenience: 0.5")
    assert problems(text) == [
        f"5:39: the rule {rule!r} is not defined for lenience below 1; remove the lenience, or choose the rule "
        "'token'."
    ]
    load_study(write(STUDY.replace("rule: token", f"rule: {rule}, lenience: 1")))


def test_a_greedy_rule_is_refused_in_the_tasks_that_sample(write, problems):
    text = STUDY.replace("rule: token", "rule: exact-match")
    assert problems(text)[0].startswith("5:39: the rule 'exact-match' compares draft tokens with the argmax")
    tasks = "tasks: [{name: cold, sampling: {temperature: 0}}, {name: warm}]\n"
    (problem,) = problems(text + tasks)
    assert problem.startswith("5:39: in task 'warm': the rule 'exact-match' compares draft tokens with the argmax")
    load_study(write(text.replace("exact-match}", "exact-match, tasks: [cold]}") + tasks))


def test_a_lossless_study_refuses_lossy_rules(write, problems):
    def study(rule, temperature):
        ruled = STUDY.replace("rule: token", f"rule: {rule}")
        return f"lossless: true\nsampling: {{temperature: {temperature}}}\n" + ruled

    for rule, temperature in (("block", 1), ("rejection", 0), ("typical", 0), ("exact-match", 0)):
        load_study(write(study(rule, temperature)))
    for rule, temperature in (("typical", 1), ("top-k", 1), ("top-k", 0)):
        (problem,) = problems(study(rule, temperature))
        assert problem.startswith(f"7:39: the rule {rule!r} of run 'random-2-{rule}' is lossy")
        assert "`lossless: true`" in problem


def test_settings_of_a_rule_are_checked_and_may_be_varied(write, problems):
    text = STUDY.replace("rule: token}", "rule: top-k, grid: {rule.k: [1, 2]}}")
    assert [run.name for run in load_study(write(text)).runs[2:]] == ["random-2-top-k-k=1", "random-2-top-k-k=2"]
    for settings, said in (("k: 0", "rule.k: input should be greater than or"), ("kk: 2", "unknown key 'kk'")):
        text = STUDY.replace("rule: token", f"rule: {{name: top-k, {settings}}}")
        assert said in problems(text)[0]


def test_results_show_the_rule_where_one_is_set(model_folder):
    drafted = {"drafter": "random", "gamma": 2}
    study = {
        "target": str(model_folder),
        "prompts": ["a b c"],
        "generation": {"max_new_tokens": 6, "ignore_eos": True},
        "repeats": 1,
        "runs": [drafted, {**drafted, "rule": {"name": "top-k", "k": 6}}],
    }
    shown = compare(study, progress=False)
    baseline, plain, ruled = shown.to_dicts()
    assert baseline["rule"] is plain["rule"] is None
    assert (ruled["rule"], ruled["lossless"], plain["lossless"]) == ("top-k", False, True)
    assert ruled["config"]["run"]["rule"] == {"name": "top-k", "k": 6}
    assert ruled["deviation"] > 0
    assert "rule" in str(shown)
    assert "acceptance rule decides" in report_page("study", shown.rows, {}, {None: ()})
