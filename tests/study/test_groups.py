"""Results by group of prompts: figures, their intervals, tested differences, and what the files say."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from specdec_core.decoding.counts import Metrics, RequestMetrics
from specdec_core.interface.errors import ConfigError
from specdec_core.study import compare
from specdec_core.study.config.grouping import batches_of, groups_of
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.report.groups import group_tables, summarize_groups
from specdec_core.study.report.quality import score
from specdec_core.study.report.summary import summarize
from specdec_core.study.run.finished_repeats import Output, Repeat
from specdec_core.study.run.runner import run_study
from tests.study.toy_study import Recorder


def prompts(*groups):
    return [PromptText(str(number), "x", group=group) for number, group in enumerate(groups)]


def repeat(number, rows, run="a"):
    """Return a repeat of requests of tokens, steps, accepted and rejected draft tokens, and seconds."""
    outputs = []
    for tokens, steps, accepted, rejected, _ in rows:
        full, rest = divmod(accepted, 9)
        metrics = RequestMetrics(9, steps, (9,) * (full + 1), (9,) * full + (rest,), rejected)
        outputs.append(Output((1,) * tokens, None, metrics))
    return Repeat(None, run, number, Metrics(), (), tuple(outputs), tuple(row[-1] for row in rows))


def figure(summaries, group, measure):
    (found,) = (one.figures[measure].value for one in summaries if one.group == group)
    return found


def test_the_groups_of_two_columns_are_cells_and_margins():
    found = groups_of(prompts(("qa", "low"), ("math", "low"), ("qa", "high"), ("math", "low")))
    assert found == {
        ("qa", "low"): (0,),
        ("qa", "high"): (2,),
        ("qa", None): (0, 2),
        ("math", "low"): (1, 3),
        (None, "low"): (0, 1, 3),
        (None, None): (0, 1, 2, 3),
    }
    assert groups_of(prompts((), ())) == {}


def numbers(batches):
    return [[list(talk) for talk in batch] for batch in batches]


def test_a_batch_has_a_single_group():
    assert numbers(batches_of(prompts(("a",), ("b",), ("a",), ("a",)), 2)) == [[[0], [2]], [[3]], [[1]]]
    assert numbers(batches_of(prompts(("a",), ("b",), ("a",)), 1)) == [[[0]], [[1]], [[2]]]
    assert numbers(batches_of(prompts((), (), ()), 2)) == [[[0], [1]], [[2]]]


def test_the_turns_of_a_conversation_count_as_one_prompt():
    turns = [replace(one, turn=turn) for one, turn in zip(prompts(*[("x",)] * 6), (1, 2, 1, 1, 2, 3), strict=True)]
    assert numbers(batches_of(turns, 2)) == [[[0, 1], [2]], [[3, 4, 5]]]
    times = (1.0, 2.0, 4.0, 3.0, 3.0, 3.0)
    rows = [(10, 5, 5, 0, seconds) for seconds in times]
    (found, *_) = summarize_groups(turns, {"a": {1: repeat(1, rows)}}, 2)["a"]
    assert (found.prompts, found.tokens) == (3, 60)
    assert found.figures["tokens_per_second"].value == pytest.approx(60 / (4 + 2 + 9))


def test_figures_are_those_of_the_steps_and_seconds_of_a_group():
    rows = [[(10, 5, 6, 2, 1.0), (20, 4, 16, 0, 2.0), (30, 30, 0, 0, 5.0)] for _ in range(3)]
    plain = [[(10, 10, 0, 0, 2.0), (20, 20, 0, 0, 4.0), (30, 30, 0, 0, 5.0)] for _ in range(3)]
    runs = {
        name: {n + 1: repeat(n + 1, one, name) for n, one in enumerate(each)}
        for name, each in (("baseline", plain), ("a", rows))
    }
    found = summarize_groups(prompts(("x",), ("x",), ("y",)), runs, 1)["a"]
    assert [one.group for one in found] == [("x",), ("y",), (None,)]
    assert [one.prompts for one in found] == [2, 1, 3]
    assert figure(found, ("x",), "block_efficiency") == pytest.approx(30 / 9)
    assert figure(found, (None,), "block_efficiency") == pytest.approx(60 / 39)
    assert figure(found, ("x",), "alpha") == pytest.approx(22 / 24)
    assert figure(found, ("x",), "tokens_per_second") == pytest.approx(10)
    assert figure(found, ("x",), "speedup") == pytest.approx(2)
    alone = found[1].figures
    assert "alpha" not in alone  # nothing was verified
    assert (alone["speedup"].value, alone["speedup"].low, alone["speedup"].few) == (1, None, True)


def test_speed_ups_are_paired_by_batch_and_few_steps_are_those_of_a_repeat():
    rows = [(10, 3, 7, 2, float(n)) for n in range(1, 7)]
    plain = [(10, 10, 0, 0, 2.0 * n) for n in range(1, 7)]
    runs = {name: {n: repeat(n, one, name) for n in (1, 2)} for name, one in (("baseline", plain), ("a", rows))}
    *_, whole = summarize_groups(prompts(*[("x",)] * 6), runs, 1)["a"]
    speedup = whole.figures["speedup"]
    assert (speedup.value, speedup.low, speedup.high) == pytest.approx((2, 2, 2))  # in each batch
    # 18 steps and 54 verified tokens, decoded twice.
    assert [whole.figures[name].few for name in ("block_efficiency", "alpha")] == [True, False]


def test_a_batch_takes_as_long_as_its_longest_request():
    rows = [(10, 5, 5, 0, 1.0), (10, 5, 5, 0, 3.0), (10, 5, 5, 0, 2.0)]
    found = summarize_groups(prompts(("x",), ("y",), ("x",)), {"a": {1: repeat(1, rows)}}, 2)["a"]
    assert figure(found, ("x",), "tokens_per_second") == pytest.approx(20 / 2)
    assert figure(found, (None,), "tokens_per_second") == pytest.approx(30 / 5)
    unknown = summarize_groups(prompts(("x",), ("y",), ("x",)), {"a": {1: repeat(1, rows)}}, 2, speeds=False)["a"]
    assert "tokens_per_second" not in unknown[0].figures


def requests(chance, count, shift=0.0):
    """Return requests whose efficiency varies with the prompt, and with the run."""
    hard = chance.uniform(1.5, 4.0, size=count)
    runs = []
    for extra in (0.0, 0.0, shift):
        steps = chance.integers(20, 60, size=count)
        noise = chance.normal(0, 0.4, size=count)
        tokens = (steps * np.maximum(1.0, hard + extra + noise)).astype(int).tolist()
        runs.append([(t, int(n), t - int(n), 0, 1.0) for t, n in zip(tokens, steps, strict=True)])
    return runs


def test_a_difference_is_told_apart_where_it_is_one():
    chance = np.random.default_rng(1)
    one, other, better = requests(chance, 30, shift=1.0)
    runs = {name: {1: repeat(1, rows, name)} for name, rows in (("a", one), ("b", other), ("c", better))}
    groups = prompts(*[("x",)] * 25, *[("y",)] * 5)
    found = summarize_groups(groups, runs, 1)
    x, y, _ = found["c"]
    assert {one.other: one.told_apart for one in x.differences} == {"a": True, "b": True}
    assert all(one.value == pytest.approx(1, abs=0.4) for one in x.differences)
    assert {one.p for one in y.differences} == {None}  # of five prompts
    assert not found["b"][0].differences[0].told_apart
    assert found["a"][0].differences == ()


STUDY = """\
target: {folder}
prompts: {{file: prompts.jsonl, group: kind}}
generation: {{max_new_tokens: 6, ignore_eos: true}}
repeats: 3
runs:
  - {{drafter: echo, gamma: 2}}
  - {{name: third, drafter: {{name: echo, token: 3}}, gamma: 3}}
"""
ROWS = [
    {"prompt": text, "kind": kind, "tier": n % 2}
    for n, (text, kind) in enumerate(zip("abcdef", "xyxyxz", strict=True))
]


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def test_all_prompts_have_the_figures_of_the_run(rows, result_of):
    for summary in summarize(result_of()):
        *_, whole = summary.groups
        assert [one.group[0] for one in summary.groups] == ["x", "y", "z", None]
        assert sum(one.prompts for one in summary.groups) == 2 * whole.prompts == 12
        assert sum(one.tokens for one in summary.groups[:-1]) == whole.tokens == summary.tokens
        figures = {name: one.value for name, one in whole.figures.items()}
        assert figures["block_efficiency"] == pytest.approx(summary.block_efficiency)
        assert figures.get("alpha") == pytest.approx(summary.alpha)
        # The seconds of a run include its set-up.
        assert figures["tokens_per_second"] >= summary.tokens / summary.seconds


def test_files_have_the_figures_the_quality_and_the_percentiles_of_each_group(rows, study, tmp_path):
    pytest.importorskip("sacrebleu")
    lines = [{**one, "reference": f"{one['prompt']} {n}" * 4} for n, one in enumerate(ROWS)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    found = compare(study(), tmp_path / "out", progress=False)
    outputs = [json.loads(line) for line in (tmp_path / "out" / "outputs.jsonl").read_text().splitlines()]
    for number, row in enumerate(found.rows):
        *_, whole = row.groups
        assert whole.percentiles == row.percentiles
        assert {name: whole.quality[name] for name in whole.quality} == {
            name: row.quality[name] for name in whole.quality
        }
        own = [one for one in outputs[6 * number :][:6] if one["group"] == ["x"]]
        expected = score([one["text"] for one in own], [one["references"] for one in own])
        (of_x, *_) = row.groups
        assert {name: of_x.quality[name] for name in expected.corpus} == expected.corpus
        assert of_x.quality["exact"] == sum(one["same_as_baseline"] for one in own) / len(own)
        lengths = [one["metrics"]["speculative_decoding"] for one in own]
        if lengths[0] is not None:
            mean = sum(one["mean_acceptance_length"] for one in lengths) / len(lengths)
            assert of_x.percentiles["mean_acceptance_length"]["mean"] == pytest.approx(mean)
    table = list(csv.DictReader((tmp_path / "out" / "summary.csv").read_text().splitlines()))
    assert [row["group"] for row in table[:5]] == ["", "x", "y", "z", "all"]
    low, value, high = (float(table[9][f"block_efficiency{end}"]) for end in ("_low", "", "_high"))
    assert low <= value <= high
    assert table[6]["block_efficiency_low"] == ""  # of three prompts
    results = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    for line, summary in zip(results, found.rows, strict=True):
        assert [(tuple(one["group"]), one["block_efficiency"]) for one in line["groups"]] == [
            (one.group, one.figures["block_efficiency"].value) for one in summary.groups
        ]
    frame = found.to_pandas()
    assert list(frame[frame.group == "x"].name) == ["baseline", "echo-2", "third"]
    assert float(table[6]["quality_chrf"]) == found.rows[1].groups[0].quality["chrf"]
    assert float(table[6]["request_seconds_p50"]) == found.rows[1].groups[0].percentiles["seconds"]["p50"]
    assert "chrF by kind" in [table.title for table in group_tables(found.rows)]
    assert "by kind" not in str(found), "a group has three prompts"
    assert "chrF by kind" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_other_groups_need_no_decoding_unless_batches_differ(rows, study, tmp_path):
    first = run_study(study(), Recorder(), output=tmp_path / "out")
    again = Recorder()
    other = run_study(study(None, "prompts.group=[kind, tier]"), again, output=tmp_path / "out")
    assert again.timed == []
    assert len(summarize(other)[0].groups) > len(summarize(first)[0].groups)
    together = study(None, "batch_size=2")
    batched = run_study(together, Recorder(), output=tmp_path / "two")
    for run in together.runs:
        alone, beside = (result.of_run(result.study.tasks[0], run.name)[1] for result in (first, batched))
        assert [one.tokens for one in alone.outputs] == [one.tokens for one in beside.outputs]
        assert len(beside.request_seconds) == len(ROWS)
    with pytest.raises(ConfigError, match="another study"):
        run_study(study(None, "batch_size=2", "prompts.group=tier"), Recorder(), output=tmp_path / "two")
