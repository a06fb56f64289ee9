"""`specdec tune` on a tiny model."""

import pytest
from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.study import load_study
from tests.offline.tune.support import STUDY, echo, write_times

FREE = (0.0, 0.0, 0.0, 0.0)


@pytest.fixture
def tune(toys, tmp_path, monkeypatch, model_folder):
    (tmp_path / "study.yaml").write_text(STUDY.format(folder=model_folder))
    write_times(tmp_path / "times.json", {"echo": (echo(2), FREE)}, (1.0, 1.0, 4.0, 9.0))
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(app, ["tune", *map(str, arguments)])

    return run


def words(text):
    return " ".join(text.split())


def test_it_says_what_it_tried_and_writes_the_winner(tune, tmp_path):
    result = tune("study.yaml", "--machine", "times.json", "--no-confirm", "--output", "best.yaml", "--wide")
    assert result.exit_code == 0, result.output
    assert "Best: echo-1" in result.output
    assert "stopped" in result.output
    assert "written: best.yaml" in words(result.output)
    assert [one.name for one in load_study(tmp_path / "best.yaml").runs] == ["baseline", "echo-1"]


def test_the_written_study_runs(tune):
    tune("study.yaml", "--machine", "times.json", "--no-confirm", "--output", "best.yaml")
    result = CliRunner().invoke(app, ["compare", "best.yaml", "--quiet"])
    assert result.exit_code == 0, result.output
    assert "echo-1" in result.output


def test_without_an_output_the_winner_is_printed(tune, tmp_path):
    before = sorted(tmp_path.iterdir())
    result = tune("study.yaml", "--machine", "times.json", "--no-confirm", "--quiet")
    assert result.exit_code == 0, result.output
    assert "runs:\n  - name: echo-1" in result.output
    assert sorted(tmp_path.iterdir()) == before


def test_a_record_may_stand_in_for_the_study_file(tune, tmp_path, model_folder):
    recorded = CliRunner().invoke(app, ["record", "study.yaml", "--output", "recorded"])
    assert recorded.exit_code == 0, recorded.output
    result = tune("recorded", "--machine", "times.json", "--no-confirm")
    assert result.exit_code == 2
    assert "has the times of no candidate" in words(result.output)  # of the installed drafters it has none
    result = tune("study.yaml", "--record", "recorded", "--machine", "times.json", "--no-confirm")
    assert result.exit_code == 0, result.output
    assert "of recorded" in words(result.output)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to tune: pass a study with the candidates, or a record such as builtin:code"),
        (["builtin:code", "--record", "builtin:code"], "two records are given"),
        (["bultin:code"], "unknown collection of models 'bultin'. Did you mean 'builtin'"),
        (["study.yaml", "--record", "nowhere"], "nowhere: no such folder"),
        (["study.yaml", "--machine", "nothing.json"], "nothing.json"),
        (["study.yaml", "--task", "cold"], "the study has no `tasks`"),
        (["study.yaml", "--set", "prompts=[a]", "--record", "."], "record.json"),
    ],
)
def test_what_cannot_be_tuned_is_said(tune, arguments, said):
    result = tune(*arguments)
    assert result.exit_code == 2, result.output
    assert said in words(result.output)


def test_an_existing_file_is_kept(tune, tmp_path):
    (tmp_path / "best.yaml").write_text("mine")
    result = tune("study.yaml", "--output", "best.yaml")
    assert result.exit_code == 2
    assert "--overwrite" in result.output
    assert (tmp_path / "best.yaml").read_text() == "mine"


def test_a_study_that_the_record_does_not_fit_is_refused(tune):
    CliRunner().invoke(app, ["record", "study.yaml", "--output", "recorded"])
    result = tune(
        "study.yaml", "--set", "sampling.temperature=0.5", "--record", "recorded", "--machine", "times.json"
    )
    assert result.exit_code == 2
    assert "sampling.temperature: 1.0 there, 0.5 now" in words(result.output)
