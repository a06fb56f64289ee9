"""Tuning from end to end on a tiny target."""

import pytest

from specdec_core.interface.errors import ConfigError
from specdec_core.interface.trainer import NoProgress
from specdec_core.offline.tune import tune
from specdec_core.study import Comparison, load_study
from tests.commands import run_command
from tests.study.summaries import run

STUDY = """\
target: {folder}
prompts: [a b c, d e, f g h]
generation: {{max_new_tokens: 8, ignore_eos: true, seed: 7}}
repeats: 1
tasks:
  - {{name: cold, sampling: {{temperature: 0}}}}
  - {{name: warm, sampling: {{temperature: 1}}}}
runs:
  - {{drafter: prompt-copy, grid: {{gamma: [1, 2, 3]}}}}
  - {{drafter: random, gamma: 1, tasks: [warm]}}
"""


@pytest.fixture
def path(tmp_path, model_folder):
    (found := tmp_path / "study.yaml").write_text(STUDY.format(folder=model_folder))
    return found


def speedups(comparison, task):
    rows = [row for row in comparison.to_dicts() if row["task"] == task and row["drafter"]]
    return {row["name"]: row["speedup"] for row in rows}


def test_the_best_of_the_replay_are_timed_and_the_fastest_is_written(path, tmp_path):
    found = tune(load_study(path), NoProgress(), best=2, output=tmp_path / "out")
    assert set(speedups(found.replayed, "warm")) == {"prompt-copy-1", "prompt-copy-2", "prompt-copy-3", "random-1"}
    for task in ("cold", "warm"):
        expected, timed = speedups(found.replayed, task), speedups(found.timed, task)
        assert set(timed) == set(sorted(expected, key=expected.get, reverse=True)[:2])
        (winner,) = (one["name"] for one in found.best["runs"] if task in one.get("tasks", ("cold", "warm")))
        assert winner in timed
    written = load_study(tmp_path / "out" / "best.yaml")
    assert [task.name for task in written.tasks] == ["cold", "warm"]
    assert {run.name for run in written.runs} == {"baseline", *(run["name"] for run in found.best["runs"])}
    again = tune(load_study(path), NoProgress(), best=2, output=tmp_path / "out")
    assert again.timed.to_dicts() == found.timed.to_dicts(), "nothing is decoded again"


def test_a_finalist_that_the_verdict_does_not_rank_does_not_win(path, monkeypatch):
    def compared(study, *_, **__):
        names = [run.name for run in study.tasks[0].runs[1:]]
        runs = [run("baseline", task="warm", drafter=None, speedup=1.0), run(names[0], task="warm", speedup=1.2)]
        runs.append(run(names[1], task="warm", speedup=9.0, uneven_calls=(8, 4)))
        return Comparison(study, tuple(runs))

    monkeypatch.setattr("specdec_core.offline.tune.compare", compared)
    found = tune(load_study(path), NoProgress(), best=2, tasks=["warm"])
    (winner,) = found.best["runs"]
    assert winner["name"] == found.timed.rows[1].name
    assert f"Warning: {found.timed.rows[2].name}: it keeps state" in str(found.timed)


def test_relative_paths_of_the_study_hold_in_the_written_one(path, tmp_path):
    (tmp_path / "prompts.txt").write_text("a b\nc d\n")
    (tmp_path / "prompt-copy").mkdir()  # the name of a drafter is no path
    study = path.read_text().replace("[a b c, d e, f g h]", "{file: prompts.txt}")
    path.write_text(study)
    found = tune(
        load_study(path, ["tasks=[{name: prompt-copy}]", "runs.1.tasks=[prompt-copy]"]), NoProgress(), best=1
    )
    assert found.best["prompts"]["file"] == str(tmp_path / "prompts.txt")
    assert found.best["tasks"] == [{"name": "prompt-copy"}]
    assert {run["drafter"]["name"] for run in found.best["runs"]} <= {"prompt-copy", "random"}


def test_what_cannot_be_replayed_is_named(path):
    study = load_study(path, ["runs=[{drafter: random, gamma: 1, lenience: 0.5}]"])
    with pytest.raises(ConfigError, match="lenience below 1"):
        tune(study, NoProgress())


def test_the_command_prints_the_winner_where_nothing_is_written(path):
    result = run_command("tune", str(path), "--task", "warm", "--best", "1", "--quiet")
    assert result.exit_code == 0, result.output
    assert "\nruns:\n  - name: " in result.stdout
