"""`specdec diff`."""

import json
import re

import pytest
from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.study.report.results_diff import differences, read_results
from tests.result_lines import BASE, row


@pytest.fixture
def results(tmp_path):
    def written(name, *rows):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        return folder

    return written


def run(*arguments):
    return CliRunner().invoke(app, ["diff", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("factor", "tolerance", "code"),
    [(1.0, "5%", 0), (0.9, "5%", 1), (0.9, "0.05", 1), (0.9, "20%", 0), (0.97, "1%", 0), (1.2, "5%", 0)],
)
def test_a_slow_down_beyond_spread_and_tolerance_fails(results, factor, tolerance, code):
    # 0.97: the intervals overlap, so that it may be chance.
    old, new = results("old", row()), results("new", row(factor=factor))
    assert run(old, new, "--fail-if-slower", tolerance).exit_code == code
    assert run(old, new).exit_code == 0


def test_the_verdict_follows_the_intervals(results):
    old = read_results(results("old", row("a"), row("b"), row("c"), row("gone")))
    new = read_results(results("new", row("a", 1.1), row("b", 0.9), row("c", 1.02), row("new")))
    found = {one.name: one for one in differences(old, new)}
    assert [found[name].verdict for name in ("a", "b", "c")] == ["faster", "slower", "same"]
    assert found["new"].status == (None, "ok")
    assert found["gone"].status == ("ok", None)
    assert found["gone"].regressed(0.05)
    assert found["a"].chance == pytest.approx(2 / 252)


def test_a_run_that_fails_now_is_a_regression(results):
    broken = row(status="error", speedup=None, speedup_low=None, speedup_high=None)
    result = run(results("old", row()), results("new", broken), "--fail-if-slower", "5%")
    assert result.exit_code == 1
    assert "ok -> error" in result.output


def test_a_slower_target_shows_in_tokens_per_second_only(results):
    target = {"tokens_per_second": 80.0, "tokens_per_second_min": 78.0, "tokens_per_second_max": 82.0}
    old, new = results("old", row()), results("new", row(**target))
    assert run(old, new, "--fail-if-slower", "5%").exit_code == 0
    assert run(old, new, "--fail-if-slower", "5%", "--by", "tokens_per_second").exit_code == 1


def test_acceptance_differs_beyond_chance_or_exactly_where_there_is_none(results):
    greedy = {"config": {**BASE["config"], "sampling": {"temperature": 0.0}}}

    def otherwise(first, second):
        (one,) = differences({(None, "draft"): first}, {(None, "draft"): second})
        return one.accepts_otherwise

    assert not otherwise(row(), row(alpha=0.81))
    assert otherwise(row(), row(alpha=0.5))
    assert otherwise(row(**greedy), row(**greedy, alpha=0.801))
    assert not otherwise(row(**greedy), row(**greedy))
    # Repeats verify the same tokens: ten times as many repeats add no evidence.
    many = {"repeats": 50, "verified_by_position": [3000, 2000]}
    assert not otherwise(row(alpha=0.8, **many), row(alpha=0.84, **many))


def test_groups_that_changed_are_shown(results):
    greedy = {"config": {**BASE["config"], "sampling": {"temperature": 0.0}}}

    def grouped(**speedups):
        each = [
            {
                "group": [name],
                "alpha": 0.5,
                "speedup": value,
                "speedup_low": value - 0.1,
                "speedup_high": value + 0.1,
            }
            for name, value in speedups.items()
        ]
        return row(**greedy, groups=[*each, {"group": [None], "alpha": 0.5}])

    old, new = results("old", grouped(code=2.0, math=2.0, qa=2.0)), grouped(code=1.7, math=2.1, other=1.0)
    new["groups"][1]["alpha"] = 0.51
    new = results("new", new)
    (found,) = differences(read_results(old), read_results(new))
    assert [(one.group, one.verdict, one.accepts_otherwise) for one in found.groups] == [
        ("code", "slower", False),
        ("math", "same", True),
    ]
    shown = run(old, new).output
    assert re.search(r"draft, code .*0\.850 .*slower", shown)
    assert re.search(r"draft, math .*accepts otherwise", shown)
    assert json.loads(run(old, new, "--json").output)["runs"][0]["groups"][0]["ratio"] == pytest.approx(0.85)
    assert "No group of prompts changed" in run(old, old).output
    assert run(old, new, "--fail-if-slower", "5%").exit_code == 0  # whole runs decide


def test_settings_versions_and_devices_that_changed_are_shown(results):
    config = {**BASE["config"], "repeats": 9, "run": {"name": "draft", "gamma": {"gamma": 5}}}
    old, new = results("old", row()), results("new", row(config=config, versions={"torch": "2.14"}))
    shown = run(old, new).output
    assert "run.gamma.gamma: 4 -> 5" in shown
    assert "versions.torch: 2.13 -> 2.14" in shown
    assert "repeats: 5" not in shown
    found = json.loads(run(old, new, "--json").output)
    assert found["changed"] == {"versions.torch": ["2.13", "2.14"]}
    assert found["runs"][0]["settings"] == {"run.gamma.gamma": [4, 5]}


def test_few_repeats_are_called_few(results):
    few = {"repeats": 3}
    assert "10%" in run(results("old", row(**few)), results("new", row(factor=0.9, **few))).output


@pytest.mark.parametrize(
    ("text", "named"), [("", "holds no runs"), ("{}", "results.jsonl:1"), ("not JSON", "results.jsonl:1")]
)
def test_a_file_without_results_is_refused(results, tmp_path, text, named):
    folder = results("old")
    (folder / "results.jsonl").write_text(text)
    result = run(folder, folder)
    assert result.exit_code == 2
    assert named in result.output.replace("\n", "")
    missing = run(tmp_path / "nowhere", folder)
    assert missing.exit_code == 2
    wrong = run(folder, folder, "--fail-if-slower", "fast")
    assert wrong.exit_code == 2
    assert "--fail-if-slower" in wrong.output
