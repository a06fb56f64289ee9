"""Tuning from end to end on a tiny target, with made-up times of steps where the winner has to be known."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from specdec_core.decoding import make_rule
from specdec_core.interface.errors import ConfigError
from specdec_core.measurement.measurement_file import read_measurement, write_measurement
from specdec_core.offline.candidate_runs import default_study
from specdec_core.offline.record.reader import read_record
from specdec_core.offline.record.recording import RecordOptions, record_study
from specdec_core.offline.replay import DrafterReplay, expected_metrics
from specdec_core.offline.replay.runs import Replayer
from specdec_core.offline.tune import RaceSettings, TuneOptions, tune
from specdec_core.offline.tune.costs import read_costs
from specdec_core.offline.tune.expected_seconds import ExpectedSeconds
from specdec_core.offline.tune.winning_study import winning_study
from specdec_core.registry import default_registry
from specdec_core.study import load_study
from specdec_core.study.config.study import drafter_key
from tests.offline.tune.support import STUDY, OneText, Seen, echo, write_times

FREE = (0.0, 0.0, 0.0, 0.0)
VERIFY = (1.0, 1.0, 4.0, 9.0)
NO_LIVE = TuneOptions(confirm=False)


@pytest.fixture
def times(tmp_path):
    """A machine on which one token is verified for nothing, and one of the echoes is dear."""
    drafts = {"echo": (echo(2), FREE), "dear": (echo(3), (0.0, 5.0, 5.0, 5.0))}
    return write_times(tmp_path / "times.json", drafts, VERIFY)


def run(study, times, output=None, options=NO_LIVE, **given):
    return tune(study, Seen(), machine=times, output=output, options=options, **given)


def test_the_seconds_are_those_of_each_text_in_the_order_asked_for(study, tmp_path):
    """Each number is compared with a replay of that text alone."""
    loaded = study(STUDY)
    record = record_study(loaded, tmp_path / "record", Seen(), RecordOptions(samples=2))
    part, runs = record.parts[0], loaded.runs[1:]
    drafts = {"echo": (echo(2), (0.0, 0.1, 0.2, 0.3)), "dear": (echo(3), (0.0, 5.0, 5.0, 5.0))}
    path = write_times(tmp_path / "times.json", drafts, (1.0, 1.1, 1.3, 1.4), overhead=0.25)
    machine = read_costs(path, runs)
    registry = default_registry()
    replays = ExpectedSeconds(Replayer(record, part, loaded.folder, registry), runs, machine, Seen())
    order = [11, 3, 15, 0]
    found = replays([run.name for run in runs], order)
    texts = list(part)
    for run, gamma in zip(runs, (1, 2, 3, 2), strict=True):
        costs = machine.costs(drafter_key(run.drafter, run.draft_sampling))
        for position, number in enumerate(order):
            acceptance = DrafterReplay(
                record, OneText(part.header, texts[number]), run.drafter, max_gamma=3
            ).acceptance()
            alone = expected_metrics(acceptance, gamma, costs=costs)
            assert found[run.name][position] == pytest.approx(alone.seconds_by_text[0])
    assert len(np.unique(found[runs[0].name])) > 1  # or the order would not matter


def test_candidates_are_replayed_with_their_rules(model_folder, tmp_path):
    own = "  - {{drafter: random, gamma: 3, grid: {{rule: [token, block]}}}}\n"
    path = tmp_path / "study.yaml"
    path.write_text((STUDY.partition("  - {{drafter")[0] + own).format(folder=model_folder))
    loaded = load_study(path)
    record = record_study(loaded, tmp_path / "record", Seen(), RecordOptions())
    part, runs, registry = record.parts[0], loaded.runs[1:], default_registry()
    machine = read_costs(write_times(tmp_path / "times.json", {"random": ({"name": "random"}, FREE)}), runs)
    replays = ExpectedSeconds(Replayer(record, part, loaded.folder, registry), runs, machine, Seen())
    found = replays([run.name for run in runs], range(len(part)))
    acceptance = DrafterReplay(record, part, runs[0].drafter, max_gamma=3).acceptance()
    for run, rule in zip(runs, (None, make_rule("block", greedy=False)), strict=True):
        alone = expected_metrics(acceptance, 3, rule=rule, costs=machine.target.with_drafter(FREE))
        assert found[run.name] == pytest.approx(alone.seconds_by_text)
    token, block = found.values()
    assert (block <= token).all()
    assert block.sum() < token.sum()


def test_the_cheap_one_wins_and_is_written(study, times, tmp_path):
    best = tmp_path / "best.yaml"
    found = run(study(STUDY), times, best)
    assert found.tasks[0].choice.run == "echo-1"
    (three,) = [one for one in found.tasks[0].race.tried if one.name == "three"]
    assert (three.outcome, three.rounds) == ("stopped", 1)
    written = load_study(best)
    assert [one.name for one in written.runs] == ["baseline", "echo-1"]
    assert written.runs[1].resolved() == study(STUDY).runs[1].resolved()
    assert written.tasks[0].resolved() == study(STUDY).tasks[0].resolved()
    assert written.tasks[0].prompts == study(STUDY).tasks[0].prompts
    assert "with the seconds of times." in best.read_text().partition("\n")[0]


def test_everything_is_in_the_json(study, times, tmp_path):
    run(study(STUDY), times, tmp_path / "best.yaml", TuneOptions(RaceSettings(finalists=1), confirm=False))
    (task,) = json.loads((tmp_path / "best-tune" / "tune.json").read_text())["tasks"]
    assert task["winner"] == "echo-1"
    assert task["finalists"] == ["echo-1"]
    assert task["baseline_tokens_per_second_expected"] == 1
    by_name = {one["name"]: one for one in task["candidates"]}
    assert list(by_name) == ["echo-1", "echo-2", "echo-3", "three"]
    assert by_name["three"]["slower"]["low"] > 1.02
    assert by_name["three"]["reason"] == "slower than echo-1"
    assert (by_name["three"]["drafter"]["token"], by_name["three"]["gamma"]["gamma"]) == (3, 2)
    speed = by_name["echo-1"]["tokens_per_second_expected"]
    assert speed["low"] < speed["value"] < speed["high"]
    assert speed["value"] > 1


def test_finalists_are_timed_live_and_the_fastest_is_chosen(study, tmp_path):
    output = tmp_path / "best.yaml"
    times = write_times(tmp_path / "times.json", {"echo": (echo(2), FREE)}, (1.0, 1.0, 1.005, 1.01))
    options = TuneOptions(RaceSettings(finalists=2), live_prompts=3)
    found = run(study(STUDY), times, output, options)
    choice = found.tasks[0].choice
    assert choice.rows[0].name == "baseline"
    assert {row.name for row in choice.rows[1:]} == set(found.tasks[0].race.finalists)
    assert len(choice.rows) == 3
    assert choice.run in found.tasks[0].race.finalists
    assert {row.config["prompts"]["limit"] for row in choice.rows} == {3}
    assert (tmp_path / "best-tune" / "live" / "results.jsonl").is_file()
    # The winning study decodes all prompts again.
    assert len(load_study(output).tasks[0].prompts) == 8


def test_steps_are_timed_here_without_a_machine_and_nothing_is_done_twice(study, tmp_path):
    output = tmp_path / "best.yaml"
    first = tune(study(STUDY), Seen(), output=output, options=NO_LIVE)
    assert "this machine" in first.machine
    folder = tmp_path / "best-tune"
    kept = [folder / "measured-0.json", *sorted(folder.glob("record/part-0/*"))]
    before = [path.stat().st_mtime_ns for path in kept]
    seen = Seen()
    second = tune(study(STUDY), seen, output=output, options=NO_LIVE)
    assert [path.stat().st_mtime_ns for path in kept][1:] == before[1:]
    assert not [stage for stage in seen.stages if "times" in stage or "recording" in stage]
    assert second.to_dict() | {"seconds": 0} == first.to_dict() | {"seconds": 0}


def test_steps_are_timed_with_as_many_sequences_as_the_study_decodes(study, tmp_path):
    output = tmp_path / "best.yaml"
    found = tune(study(STUDY + "batch_size: 2\n"), Seen(), output=output, options=NO_LIVE)
    assert {one.outcome for one in found.tasks[0].race.tried} <= {"finalist", "beyond", "stopped"}
    measured = read_measurement(tmp_path / "best-tune" / "measured-0.json")
    assert measured.batch_size == 2
    assert [len(one.seconds.draft) for one in measured.drafters] == [4, 4]
    # Other times are not taken for those of one sequence.
    again = tune(study(STUDY), Seen(), output=output, options=NO_LIVE)
    assert again.study.config.batch_size == 1
    assert read_measurement(tmp_path / "best-tune" / "measured-0.json").batch_size == 1


def test_runs_that_cannot_be_replayed_are_told_and_the_others_raced(study, times):
    lenient = STUDY + "  - {{name: lenient, drafter: {{name: echo, token: 2}}, gamma: 2, lenience: 0.5}}\n"
    unknown = lenient + "  - {{name: unknown, drafter: {{name: echo, token: 5}}, gamma: 2}}\n"
    found = run(study(unknown), times)
    tried = {one.name: one for one in found.tasks[0].race.tried}
    assert "lenience" in tried["lenient"].reason
    assert "has no times of this drafter" in tried["unknown"].reason
    assert {tried[name].outcome for name in ("lenient", "unknown")} == {"refused"}
    assert found.tasks[0].choice.run == "echo-1"


def test_a_drafter_that_fails_costs_only_its_own_candidates(study, tmp_path):
    drafts = {"echo": (echo(2), FREE), "broken": (echo(2) | {"breaks": True}, FREE)}
    times = write_times(tmp_path / "times.json", drafts, VERIFY)
    broken = "  - {{name: broken, drafter: {{name: echo, token: 2, breaks: true}}, gamma: 1}}\n"
    found = run(study(STUDY + broken), times)
    tried = {one.name: one for one in found.tasks[0].race.tried}
    assert tried["broken"].outcome == "refused"
    assert "the echo broke" in tried["broken"].reason
    assert found.tasks[0].choice.run == "echo-1"


TASKS = STUDY + "tasks: [{{name: cold, sampling: {{temperature: 0}}}}, {{name: warm}}]\n"


def test_each_task_has_its_own_race_and_winner(study, times, tmp_path):
    found = run(study(TASKS), times, tmp_path / "best.yaml")
    assert [one.task for one in found.tasks] == ["cold", "warm"]
    written = load_study(tmp_path / "best.yaml")
    for task in found.tasks:
        (of_task,) = [one for one in written.tasks if one.name == task.task]
        assert [one.name for one in of_task.runs] == ["baseline", task.choice.run]
    assert "cold" in str(found)


def test_one_task_may_be_chosen(study, times, tmp_path):
    found = run(study(TASKS), times, tmp_path / "best.yaml", task="warm")
    assert [one.task for one in found.tasks] == ["warm"]
    assert [one.name for one in load_study(tmp_path / "best.yaml").tasks] == ["warm"]
    with pytest.raises(ConfigError, match=r"unknown task 'worm'.*warm"):
        run(study(TASKS), times, task="worm")


def test_a_record_stands_for_the_target(study, times, tmp_path):
    """With a record and a machine the target is not even there."""
    loaded = study(STUDY)
    record_study(loaded, tmp_path / "record", Seen())
    from specdec_core.offline.tune import tuning

    def absent(*_):
        raise AssertionError("the target is loaded")

    patch = pytest.MonkeyPatch()
    patch.setattr(tuning, "load_target", absent)
    try:
        found = run(loaded, times, record=tmp_path / "record")
    finally:
        patch.undo()
    assert found.tasks[0].choice.run == "echo-1"
    assert len(read_record(tmp_path / "record").parts[0]) == found.tasks[0].race.texts


def test_times_of_none_of_the_drafters_are_an_error(study, tmp_path):
    times = write_times(tmp_path / "times.json", {"other": (echo(7), FREE)})
    with pytest.raises(ConfigError, match="has the times of no candidate; it has those of other"):
        run(study(STUDY), times)


def test_steps_of_a_batch_are_shared_by_its_texts(study, tmp_path):
    """Twice the rows at the same seconds a step is twice the speed."""
    drafts = {"echo": (echo(2), FREE), "dear": (echo(3), FREE)}
    one, two = (write_times(tmp_path / f"{rows}.json", drafts, batch_size=rows) for rows in (1, 2))
    single, double = (run(study(STUDY), path).tasks[0] for path in (one, two))
    assert double.baseline == 2 * single.baseline
    for slow, fast in zip(single.race.tried, double.race.tried, strict=True):
        assert fast.speed.value == pytest.approx(2 * slow.speed.value)


def test_times_that_vary_more_than_the_margin_are_warned_of(study, tmp_path):
    path = tmp_path / "times.json"
    measurement = read_measurement(write_times(path, {"echo": (echo(2), FREE), "dear": (echo(3), FREE)}))
    slow = measurement.drafters[1]
    slower = slow.seconds.model_copy(update={"verify": tuple(1.2 * t for t in slow.seconds.verify)})
    drafters = (measurement.drafters[0], slow.model_copy(update={"seconds": slower}))
    write_measurement(path, measurement.model_copy(update={"drafters": drafters}))
    noisy = run(study(STUDY), path, tmp_path / "best.yaml")
    (task,) = noisy.tasks
    assert "known to ±9%" in task.warning
    head = tmp_path.joinpath("best.yaml").read_text().partition("target:")[0].replace("\n# ", " ")
    plain = json.loads(tmp_path.joinpath("best-tune", "tune.json").read_text())["tasks"][0]
    for said in (str(noisy), head, plain["sure"] + plain["warning"]):
        assert "known to ±9%" in said
        assert "probability" not in said
        assert "95%" not in said.replace("95% confidence interval", "")
    (quiet,) = run(study(STUDY), path, options=TuneOptions(RaceSettings(margin=0.1), confirm=False)).tasks
    assert quiet.warning is None
    assert "with at least 95% probability" in quiet.sure


@pytest.fixture
def recorded(study, tmp_path):
    """Return a function that tunes on a record with T(k) up to k = 3, which it changes."""
    record_study(study(STUDY), tmp_path / "timed", Seen(), RecordOptions(gamma=3, timings=2))
    path = tmp_path / "timed" / "record.json"
    header = json.loads(path.read_text())

    def tuned(text=STUDY, output=None, **times):
        path.write_text(json.dumps(header | {"times": header["times"] | times}))
        seen = Seen()
        return tune(study(text), seen, record=tmp_path / "timed", output=output, options=NO_LIVE), seen

    return tuned


def test_times_of_the_record_are_used_without_the_target(recorded, tmp_path):
    output = tmp_path / "best.yaml"
    found, seen = recorded(output=output, verify=VERIFY, overhead=0.0, verify_spread=(0.001,) * 4)
    assert "T(k) from the record" in found.machine
    assert found.tasks[0].baseline == 1.0
    assert found.tasks[0].choice.run == "echo-1"
    assert found.tasks[0].warning is None
    assert [stage for stage in seen.stages if "loading" in stage] == []
    assert len([stage for stage in seen.stages if stage.endswith(": times")]) == 2
    again, seen = recorded(output=output, verify=VERIFY, overhead=0.0, verify_spread=(0.001,) * 4)
    assert [stage for stage in seen.stages if stage.endswith(": times")] == []
    assert again.to_dict() | {"seconds": 0} == found.to_dict() | {"seconds": 0}
    noisy, _ = recorded(verify=VERIFY, overhead=0.0, verify_spread=(0.3,) * 4)
    assert "known to ±30%" in noisy.tasks[0].warning
    assert "probability" not in noisy.tasks[0].sure


@pytest.mark.parametrize(
    ("text", "times", "why"),
    [
        (STUDY, {"device": "cuda:0 (a large one)"}, r"timed on cuda:0 \(a large one\), and .* run on cpu"),
        (STUDY, {"verify": (1.0, 1.0)}, r"ends at k = 1, and the candidates draft up to 3 tokens; .*--gamma 3"),
        (STUDY, {"batch_size": 2}, r"with 2 sequences together, and the study decodes 1"),
        (STUDY.replace("{folder}", "{{model: {folder}, packed: false}}"), {}, r"other settings \(packed\)"),
    ],
)
def test_why_times_of_the_record_are_not_used_is_said(recorded, tmp_path, text, times, why):
    output = tmp_path / "best.yaml"
    found, seen = recorded(text, output, **times)
    assert any("loading" in stage for stage in seen.stages)
    assert "this machine" in found.machine
    head = output.read_text().partition("target:")[0].replace("\n# ", " ")
    (task,) = json.loads((tmp_path / "best-tune" / "tune.json").read_text())["tasks"]
    for said in (str(found), head, task["note"]):
        assert re.search(f"T\\(k\\) of the record was not used: .*{why}", said), said


def test_a_study_of_a_record_has_no_empty_keys(study, tmp_path):
    record_study(study(STUDY), tmp_path / "record", Seen())
    study, _ = default_study(read_record(tmp_path / "record"))
    best = winning_study(study, {None: study.runs[1].name}, tmp_path)
    assert list(best["target"]) == ["model"]
    assert "null" not in json.dumps(best)
