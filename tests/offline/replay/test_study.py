"""Replaying a study on a record: the numbers are those of the recorded acceptance, and whatever fails is named."""

import json
import sys
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from specdec_core.cluster import LocalPool
from specdec_core.costs.step_costs import Machine, StepCosts
from specdec_core.decoding.arguments import make_controller
from specdec_core.interface import ConfigError
from specdec_core.offline.candidate_runs import default_drafters, gammas_of, study_of_drafters
from specdec_core.offline.record.recording import RecordOptions, record_study
from specdec_core.offline.record.store import read_record
from specdec_core.offline.record.tasks import part_for, recorded_tasks
from specdec_core.offline.replay.comparison import replay
from specdec_core.offline.replay.drafter_replay import DrafterReplay
from specdec_core.offline.replay.replayed_metrics import expected_metrics
from specdec_core.offline.replay.study_replay import replay_study
from specdec_core.registry.registry import default_registry
from specdec_core.study import Study, load_study
from specdec_core.study.config.study import drafter_key
from specdec_core.study.report.result_files import write_results
from specdec_core.study.report.summary import summarize
from specdec_core.study.report.tables import results_table
from specdec_core.study.report.verdict import verdict
from specdec_core.study.run.runner import run_study
from specdec_core.theory.intervals import ratio_interval
from tests.docs.pages import ROOT
from tests.offline.replay.studies import study_of, toy_registry
from tests.study.toy_study import Recorder

RUNS = (
    {"drafter": "prompt-copy", "grid": {"gamma": [1, 2, 3]}},
    {"drafter": "random", "grid": {"gamma": [1, 3]}},
    {"drafter": "again", "grid": {"gamma": [1, 2, 3]}},
)
MACHINE = Machine("here", "cpu (a small one)", StepCosts(verify=(1.0, 1.25, 1.5, 2.0), overhead=0.25))


class Progress(Recorder):
    """Records how many runs of a replay were finished before."""

    def __init__(self):
        super().__init__()
        self.finished = []

    def measured(self, point):
        self.finished.append((point["runs"], point["finished before"]))


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    sys.path.insert(0, str(folder))
    yield toy_registry(folder)
    sys.path.remove(str(folder))
    sys.modules.pop("again_toy", None)


@pytest.fixture
def again(registry):
    """The class of the toy drafter, which counts how often it is asked."""
    registry.spec("drafter", "again")
    from again_toy import Again

    Again.asked = 0
    return Again


@pytest.fixture(scope="module")
def record(model_folder, tmp_path_factory):
    """A record of the tiny target, with two texts of each sampled prompt and without T(k)."""
    path = tmp_path_factory.mktemp("records") / "record"
    record_study(load_study(study_of(model_folder)), path, Recorder(), RecordOptions(samples=2))
    return read_record(path)


@pytest.fixture
def loaded(registry, model_folder):
    """Loads a study of some runs."""
    return lambda *runs, **changed: load_study(
        study_of(model_folder, *(runs or RUNS), **changed), registry=registry
    )


@pytest.fixture
def replayed(record, registry, loaded):
    """Replays runs on the record, and returns the result."""

    def run(*runs, machines=(), progress=None, output=None, pool=None, **changed):
        study = loaded(*runs, **changed)
        parts = [part_for(record, task) for task in study.tasks]
        progress = progress or Recorder()
        return replay_study(
            *(study, record, parts, progress),
            name="a record",
            machines=machines,
            output=output,
            pool=pool,
            registry=registry,
        )

    return run


def timed(study: Study, machine=MACHINE, **drafts):
    """A machine with the times of each drafter of a study, by name."""
    keys = {run.labels.drafter: drafter_key(run.drafter, run.draft_sampling) for run in study.runs[1:]}
    costs = {keys[name]: machine.target.with_drafter(times) for name, times in drafts.items()}
    return replace(machine, drafters=costs)


# At temperature 0, too, `random` draws its drafts.
def test_greedy_counts_are_those_of_decoding(replayed, registry):
    result = replayed(RUNS[0], RUNS[2])
    live = run_study(result.study, Recorder(), registry=registry)
    kinds = ("tokens", "target_calls", "drafted", "accepted", "rejected", "asked_at", "verified_at", "accepted_at")
    for run in result.study.runs:
        own, decoded = (one.repeats["greedy", run.name, 1].metrics for one in (result, live))
        for kind in kinds:
            assert getattr(own, kind) == pytest.approx(getattr(decoded, kind)), (run.name, kind)
        assert [one.steps for one in own.times] == pytest.approx([one.steps for one in decoded.times]), run.name
    outputs = [one.repeats["greedy", "baseline", 1].outputs for one in (result, live)]
    own, decoded = ([(one.tokens, one.text) for one in each] for each in outputs)
    assert own == decoded, "the texts of the record"


def _copied(value):
    return ForkingPickler.loads(ForkingPickler.dumps(value))


class CopyingPool(LocalPool):
    """Jobs for two workers, which get and return copies, as other processes do."""

    def workers(self, cpus=1, gpus=0.0):
        return 2

    def map(self, function, jobs, **resources):
        return map(_copied, super().map(function, _copied(jobs), **resources))


def test_workers_find_what_one_process_finds(replayed):
    runs = [{"drafter": "prompt-copy", "gamma": 2}, {"drafter": "random", "gamma": 3}]
    here, there = (replayed(*runs, machines=[MACHINE], pool=pool) for pool in (None, CopyingPool()))
    assert not here.failed
    assert here.repeats == there.repeats


def test_numbers_are_those_of_the_recorded_acceptance(replayed, record, registry):
    result = replayed(machines=[])
    rows = {(row.task, row.name): row for row in summarize(result)}
    for part, task in zip(record.parts, result.study.tasks, strict=True):
        config = task.runs[4].drafter
        acceptance = DrafterReplay(record, part, config, max_gamma=3, registry=registry).acceptance()
        for gamma in (1, 3):
            row, expected = rows[task.name, f"random-{gamma}"], expected_metrics(acceptance, gamma)
            assert row.block_efficiency == pytest.approx(expected.metrics.block_efficiency)
            assert row.alpha == pytest.approx(expected.metrics.alpha)
            assert row.verified_by_position == pytest.approx(expected.metrics.verified_at)
            numbers = [one.number for one in acceptance]
            counts = (expected.by_text[name].tolist() for name in ("tokens", "steps"))
            interval = ratio_interval(*counts, numbers)
            assert (row.replayed.low, row.replayed.high) == pytest.approx(interval)
            assert (row.replayed.texts, row.replayed.prompts) == (len(part), 3)
            assert row.replayed.tokens == row.tokens == len(part) * 12
    assert len(record.parts[1]) == 6, "two texts of each sampled prompt"


def test_groups_have_the_expectations_of_their_texts(replayed, loaded, record, registry, tmp_path):
    rows = [{"prompt": text, "kind": kind} for text, kind in (("a b c", "x"), ("d e f", "y"), ("g h a b", "x"))]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = [
        {"drafter": "random", "gamma": gamma}
        for gamma in (3, {"name": "running-average", "max_gamma": 3, "initial_gamma": 2})
    ]
    prompts = {"file": str(tmp_path / "p.jsonl"), "group": "kind"}
    machine = timed(loaded(*runs), random=(0.0, 0.5, 0.5, 0.5))
    result = replayed(*runs, machines=[machine], prompts=prompts)
    config = result.study.tasks[1].runs[1].drafter
    acceptance = DrafterReplay(record, record.parts[1], config, max_gamma=3, registry=registry).acceptance()
    found = [row for row in summarize(result) if row.task == "sampled"]
    for row in found:
        kinds = {one.group: {name: figure.value for name, figure in one.figures.items()} for one in row.groups}
        assert list(kinds) == [("x",), ("y",), (None,)]
        assert kinds[None,]["block_efficiency"] == pytest.approx(row.block_efficiency)
        assert kinds[None,].get("alpha") == pytest.approx(row.alpha)
        assert kinds[None,]["tokens_per_second"] == pytest.approx(row.tokens_per_second)
        assert kinds[None,]["speedup"] == pytest.approx(row.speedup)
    own = expected_metrics([one for one in acceptance if one.number != 1], 3).metrics
    of_x = found[1].groups[0].figures
    assert of_x["block_efficiency"].value == pytest.approx(own.block_efficiency)
    assert of_x["alpha"].value == pytest.approx(own.alpha)


def test_a_grid_of_gammas_asks_the_drafter_once(replayed, again):
    replayed({"drafter": "again", "gamma": 3})
    alone = again.asked
    assert alone > 0
    again.asked = 0
    replayed({"drafter": "again", "grid": {"gamma": [1, 2, 3]}})
    assert again.asked == alone


def test_seconds_are_expected_on_the_machines_that_are_given(replayed, loaded, record, registry):
    study = loaded()
    fast = StepCosts(verify=(0.1,) * 4, overhead=0.25)
    machines = [
        timed(study, replace(MACHINE, name="slow"), **{"prompt-copy": (0.0, 0.5, 0.5, 0.5), "random": (0.0,) * 4}),
        timed(study, Machine("fast", MACHINE.device, fast), **{"prompt-copy": (0.0, 0.0, 0.0, 0.0)}),
    ]
    result = replayed(machines=machines)
    names = [task.name for task in result.study.tasks]
    assert names == ["greedy on slow", "greedy on fast", "sampled on slow", "sampled on fast"]
    rows = {(row.task, row.name): row for row in summarize(result)}
    for machine in machines:
        for name in ("greedy", "sampled"):
            part = record.parts[["greedy", "sampled"].index(name)]
            task = f"{name} on {machine.name}"
            config = study.tasks[0].runs[1].drafter
            acceptance = DrafterReplay(record, part, config, max_gamma=3, registry=registry).acceptance()
            costs = machine.drafters[drafter_key(config, None)]
            took = expected_metrics(acceptance, 2, costs=costs).metrics.seconds
            tokens = rows[task, "baseline"].tokens
            alone = tokens * machine.target.step[0]
            row = rows[task, "prompt-copy-2"]
            assert rows[task, "baseline"].seconds == pytest.approx(alone)
            assert row.speedup == row.speedup_expected_here == pytest.approx(alone / took)
            assert row.tokens_per_second == pytest.approx(tokens / took)
            assert row.speedup_low <= row.speedup <= row.speedup_high
            assert row.speedup_by_gamma[2] == pytest.approx(row.speedup)
            assert len(row.speedup_by_gamma) == 4
            assert row.gamma_best == max(range(4), key=row.speedup_by_gamma.__getitem__)
            assert row.replayed.machine == machine.name
            assert row.device == "cpu (a small one)"
    lacking = rows["greedy on fast", "random-3"]
    assert (lacking.speedup, lacking.tokens_per_second, lacking.c) == (None, None, None)
    assert lacking.block_efficiency == rows["greedy on slow", "random-3"].block_efficiency
    assert lacking.notes == ("fast has no times of this drafter, so no speeds are expected there.",)
    assert (
        verdict([row for row in rows.values() if row.task == "greedy on fast"])
        .warnings[0]
        .startswith("random-1: ")
    )


def test_runs_of_one_drafter_differ_by_their_rule(replayed, loaded, record, registry):
    runs = [{"name": rule, "drafter": "random", "gamma": 3, "rule": rule} for rule in ("token", "block")]
    study = loaded(*runs)
    machine = timed(study, random=(0.0, 0.01, 0.02, 0.03))
    rows = {(row.task, row.name): row for row in summarize(replayed(*runs, machines=[machine]))}
    acceptance = DrafterReplay(
        record, record.parts[1], study.runs[1].drafter, max_gamma=3, registry=registry
    ).acceptance()
    token, block = (rows["sampled", name] for name in ("token", "block"))
    for row, rule in ((token, None), (block, make_controller("rule", "block"))):
        expected = expected_metrics(acceptance, 3, rule=rule).metrics
        assert row.block_efficiency == pytest.approx(expected.block_efficiency)
        assert row.speedup_by_gamma[3] == pytest.approx(row.speedup)
    assert block.block_efficiency > token.block_efficiency
    block, token = rows["greedy", "block"], rows["greedy", "token"]
    assert (block.accepted, block.tokens, block.target_calls) == (token.accepted, token.tokens, token.target_calls)


def test_two_machines_of_one_name_are_refused(replayed):
    with pytest.raises(ConfigError, match="several machines are called 'here'"):
        replayed(RUNS[0], machines=[MACHINE, MACHINE])


def test_gammas_beyond_what_was_timed_have_no_seconds(replayed, loaded):
    study = loaded({"drafter": "prompt-copy", "gamma": 5})
    machine = timed(study, **{"prompt-copy": (0.0,) * 6})
    result = replayed({"drafter": "prompt-copy", "grid": {"gamma": [3, 5]}}, machines=[machine])
    short, long = summarize(result)[1:3]
    assert short.speedup > 0
    assert long.speedup is None
    assert "up to 5 tokens take times that were not measured" in long.notes[0]
    assert len(short.speedup_by_gamma) == 4


def test_without_the_times_of_a_machine_acceptance_stands(replayed):
    rows = summarize(replayed())
    row = next(row for row in rows if row.name == "prompt-copy-2")
    assert row.block_efficiency >= 1
    assert (row.c, row.speedup, row.tokens_per_second, row.time_shares) == (None,) * 4
    table = results_table(rows[:9])
    assert [column.name for column in table.columns] == [
        *("run", "drafter", "γ", "acceptance rate", "block efficiency")
    ]
    assert "speeds are not known" in table.notes[0]
    said = verdict(rows[:9]).answer
    assert "most tokens per forward pass of the target" in said


def test_times_of_the_record_are_used_with_the_drafters_here(registry, model_folder, tmp_path):
    study = load_study(study_of(model_folder, {"drafter": "again", "gamma": 2}), registry=registry)
    record_study(study, tmp_path / "timed", Recorder(), RecordOptions(gamma=3, timings=2))
    record = read_record(tmp_path / "timed")

    def rows(times):
        header = record.header.model_copy(update={"times": times})
        changed = replace(record, header=header)
        result = replay_study(study, changed, record.parts, Recorder(), name="timed", registry=registry)
        return summarize(result)

    times = record.header.times
    _, row, *_ = rows(times)
    assert row.speedup > 0
    assert row.replayed.machine == times.device
    assert row.notes == ()
    assert row.replayed.noise > 0  # both T(k) and D(k) were timed twice
    _, row, *_ = rows(times.model_copy(update={"device": "cuda:0 (a large one)"}))
    assert row.notes[0].startswith("T(k) was recorded on cuda:0 (a large one); the drafter was timed here, on cpu")


@pytest.mark.parametrize("spread", [0.1, 0.001])
def test_the_noise_of_the_times_is_passed_on(replayed, loaded, spread):
    target = StepCosts(verify=(1.0,) * 4, overhead=0.25, verify_spread=(spread,) * 4)
    machine = timed(loaded(RUNS[2]), Machine("here", "cpu", target), again=(0.0,) * 4)
    _, row, *_ = summarize(replayed(RUNS[2], machines=[machine]))
    assert row.replayed.noise == pytest.approx(spread)


def test_what_cannot_be_replayed_is_named_and_the_others_go_on(replayed):
    runs = (
        {"name": "lenient", "drafter": "again", "gamma": 2, "lenience": 0.5},
        {"name": "lossy", "drafter": "again", "gamma": 2, "rule": "typical"},
        {"name": "rejecting", "drafter": "again", "gamma": 2, "rule": "rejection"},
        {"name": "tree", "drafter": "again", "gamma": {"name": "tree", "widths": [2, 1]}},
        {"name": "broken", "drafter": {"name": "again", "breaks": True}, "grid": {"gamma": [1, 2]}},
        {"name": "sound", "drafter": "again", "gamma": 2},
    )
    result = replayed(*runs)
    why = {run: reason for (task, run), reason in result.failed.items() if task == "sampled"}
    assert sorted(why) == ["broken-gamma=1", "broken-gamma=2", "lenient", "lossy", "rejecting", "tree"]
    assert "lenience below 1 cannot be replayed" in why["lenient"]
    assert "the rule 'typical' cannot be replayed at this temperature: it is lossy" in why["lossy"]
    assert "the rule 'rejection' cannot be replayed on this record" in why["rejecting"]
    assert not {"lossy", "rejecting"} & {run for task, run in result.failed if task == "greedy"}
    assert "trees" in why["tree"]
    assert "it broke" in why["broken-gamma=1"]
    assert why["broken-gamma=1"] == why["broken-gamma=2"]
    rows = {row.name: row for row in summarize(result) if row.task == "sampled"}
    assert rows["sound"].status == "ok"
    assert rows["sound"].block_efficiency > 1
    assert rows["lenient"].status == "error"
    table = results_table(list(rows.values()))
    assert any(row.cells[0] == "lenient (failed)" for row in table.rows)


def test_a_stopped_replay_goes_on_where_it_was(replayed, again, tmp_path):
    runs = ({"drafter": "prompt-copy", "gamma": 2}, {"drafter": "random", "gamma": 1}, RUNS[2])

    class Stops(Progress):
        def stage(self, what, total=None):
            super().stage(what, total)
            if len(self.stages) == 3:  # the third drafter of the first task
                raise KeyboardInterrupt

    with pytest.raises(
        KeyboardInterrupt, match=r"stopped; 3 of 12 runs are stored in .*Run the same command again"
    ):
        replayed(*runs, output=tmp_path / "out", progress=Stops())
    assert again.asked == 0
    going = Progress()
    result = replayed(*runs, output=tmp_path / "out", progress=going)
    assert "again: replaying" in going.stages
    whole = replayed(*runs)
    assert {key: (one.metrics, one.by_prompt) for key, one in result.repeats.items()} == {
        key: (one.metrics, one.by_prompt) for key, one in whole.repeats.items()
    }
    assert summarize(result) == [replace(row, device=row.device) for row in summarize(whole)]
    again.asked = 0
    resumed = Progress()
    replayed(*runs, output=tmp_path / "out", progress=resumed)
    assert (again.asked, resumed.stages) == (0, [])
    assert resumed.finished == [(12, 12)]
    module = Path(sys.modules["again_toy"].__file__)
    module.write_text(module.read_text() + "# edited\n")
    with pytest.warns(RuntimeWarning, match="run again: 'again-"):
        replayed(*runs, output=tmp_path / "out", progress=(edited := Progress()))
    assert (set(edited.stages), edited.finished) == ({"again: replaying"}, [(12, 6)])


def test_another_record_in_the_folder_is_refused(replayed, tmp_path):
    replayed(RUNS[0], output=tmp_path / "out")
    with pytest.raises(ConfigError, match="holds the results of another study"):
        replayed(RUNS[0], output=tmp_path / "out", machines=[MACHINE])


def test_results_say_that_they_are_replayed(replayed, loaded, tmp_path):
    machine = timed(loaded(RUNS[0]), **{"prompt-copy": (0.0, 0.1, 0.1, 0.1)})
    result = replayed(RUNS[0], machines=[machine])
    rows = summarize(result)
    paths, problems = write_results(tmp_path, result.study, rows, {})
    assert problems == []
    lines = [json.loads(line) for line in paths[0].read_text().splitlines()]
    on = lines[1]["replayed"]
    assert (on["record"], on["texts"], on["tokens"], on["machine"]) == ("a record", 3, 36, "here")
    assert on["low"] <= lines[1]["block_efficiency"] <= on["high"]
    header = paths[1].read_text().splitlines()[0].split(",")
    assert {"replayed_record", "replayed_low", "replayed_high"} <= set(header)


def test_a_study_that_differs_from_the_record_is_told_how(record, model_folder):
    study = load_study(study_of(model_folder, generation={"max_new_tokens": 10, "ignore_eos": True}))
    with pytest.raises(ConfigError, match=r"greedy: .*generation.max_new_tokens: 12 there, 10 now"):
        replay(record, study, progress=False)


def test_drafters_are_replayed_on_every_part(record):
    result = replay(record, ["prompt-copy", "random"], gammas=[1, 4], progress=False)
    assert {(row.task, row.name) for row in result.rows} == {
        (task, name)
        for task in ("greedy", "sampled")
        for name in ("baseline", "prompt-copy-1", "prompt-copy-4", "random-1", "random-4")
    }
    assert result.exit_code == 0
    assert "eplayed on" in str(result)
    runs = [{"drafter": "random", "gamma": 4, "tasks": ["sampled"]}, {"drafter": "prompt-copy", "gamma": 1}]
    some = replay(record, {"runs": runs}, progress=False)
    names = {task: [row.name for row in some.rows if row.task == task] for task in ("greedy", "sampled")}
    assert names == {
        "greedy": ["baseline", "prompt-copy-1"],
        "sampled": ["baseline", "random-4", "prompt-copy-1"],
    }


def test_tasks_of_a_record_are_those_that_were_recorded(record, model_folder):
    own = load_study(study_of(model_folder)).tasks
    for task, recorded in zip(own, recorded_tasks(record), strict=True):
        assert (recorded.name, recorded.sampling) == (task.name, task.sampling)
        assert (recorded.generation, recorded.target) == (task.generation, task.target)
        assert recorded.prompts_config == task.prompts_config
        assert [prompt.tokens for prompt in recorded.prompts] == [(0, 1, 2), (3, 4, 5), (6, 7, 0, 1)]
        assert part_for(record, recorded).header.task == task.name


def test_the_example_is_on_the_tasks_of_the_record_that_ships():
    study = load_study(ROOT / "examples" / "replay.yaml")
    record = read_record("builtin:code")
    parts = [part_for(record, task) for task in study.tasks]
    assert [part.header.task for part in parts] == [task.name for task in study.tasks]
    shipped = (one for one in default_registry().records() if one.distribution == "specdec-core")
    kinds = {one.name for one in shipped if one.kind == "drafter"}
    without_checkpoint = {"assistant", "dflash", "mtp"}
    assert {run.drafter.name for run in study.runs[1:]} == kinds - without_checkpoint
    assert {run.gamma.gamma for run in study.runs[1:]} == set(range(1, 9))


def test_drafters_of_one_name_are_told_apart_by_their_settings():
    copies = [{"name": "prompt-copy", "min_match": n} for n in (1, 2)]
    runs = study_of_drafters([*copies, "random"], [3])["runs"]
    assert [run.get("name") for run in runs] == [*("prompt-copy(min_match=1)", "prompt-copy(min_match=2)", None)]
    assert [run["grid"] for run in runs] == [{"gamma": [3]}] * 3


def test_the_drafters_that_can_be_tried_are_told_from_the_others(record, registry):
    drafters, left_out = default_drafters(record, registry)
    assert {"prompt-copy", "random"} <= {one["name"] for one in drafters}
    assert {"transformer", "chain", "early-exit", "heads"} <= set(left_out)
    assert "name it" in left_out["again"], "a plugin of others may call a service"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["1-3"], [1, 2, 3]),
        (["1..3", "3", "8"], [1, 2, 3, 8]),
        (["cost-aware"], ["cost-aware"]),
        (["{name: fixed, gamma: 2}"], [{"name": "fixed", "gamma": 2}]),
    ],
)
def test_gammas_are_numbers_ranges_and_controllers(texts, found):
    assert gammas_of(texts) == found


@pytest.mark.parametrize("text", ["4-2", "1-2000"])
def test_a_range_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="is not a range"):
        gammas_of([text])
