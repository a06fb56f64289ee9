"""Tasks: a study that decodes more than one thing, each with a baseline of its own; and what was written."""

import gc
import importlib
import json

import pytest

from specdec_core.interface import ConfigError
from specdec_core.interface.errors import PromptError
from specdec_core.study.report.result_files import first_outputs, output_lines
from specdec_core.study.report.summary import summarize
from specdec_core.study.report.tables import by_task, quality_table, results_table
from specdec_core.study.report.verdict import verdict
from specdec_core.study.run import prepared, runner
from specdec_core.study.run.runner import run_study
from tests.study.toy_study import Recorder

STUDY = """\
target: {folder}
sampling: {{temperature: 0, top_k: 5}}
generation: {{max_new_tokens: 6, ignore_eos: true, seed: 3}}
repeats: 2
tasks:
  - name: short
    prompts: {{file: scored.jsonl}}
    generation: {{max_new_tokens: 4}}
  - name: long
    prompts: [d e]
    grid: {{sampling.temperature: [0, 1]}}
runs:
  - {{drafter: echo, gamma: 2}}
  - {{name: only-long, drafter: echo, gamma: 3, tasks: ["long*"]}}
"""
SCORED = [
    {"prompt": "a b c", "reference": "a b c", "id": "one", "source": "here"},
    {"prompt": "b", "reference": "c"},
]


@pytest.fixture
def study(study, tmp_path):
    (tmp_path / "scored.jsonl").write_text("".join(json.dumps(line) + "\n" for line in SCORED))
    return study


def test_a_task_says_what_differs_from_the_study(study):
    short, cold, warm = study().tasks
    assert [task.name for task in (short, cold, warm)] == ["short", "long-temperature=0", "long-temperature=1"]
    assert short.generation.max_new_tokens == 4
    assert short.generation.ignore_eos, "what a task leaves out stays as the study has it"
    assert short.generation.seed == 3
    assert (cold.sampling.temperature, warm.sampling.temperature) == (0, 1)
    assert {task.sampling.top_k for task in (short, cold, warm)} == {5}
    assert [prompt.text for prompt in warm.prompts] == ["d e"]
    assert [run.name for run in short.runs] == ["baseline", "echo-2"]
    assert [run.name for run in warm.runs] == ["baseline", "echo-2", "only-long"]


def test_a_task_may_have_a_target_of_its_own_and_be_set(study):
    text = STUDY.replace("  - name: short\n", "  - name: short\n    target: builtin:drafter\n")
    short, cold, _ = study(text, "tasks.short.generation.max_new_tokens=2").tasks
    assert short.target.model == "builtin:drafter"
    assert cold.target.model != "builtin:drafter"
    assert short.generation.max_new_tokens == 2


@pytest.mark.parametrize(
    ("old", "new", "messages"),
    [
        ("target: {folder}\n", "", ["5:5: tasks[0]: missing key 'target'; add it here, or to the whole study."]),
        (
            "name: long\n    prompts: [d e]\n    grid: {{sampling.temperature: [0, 1]}}",
            "{{name: short, prompts: [x]}}",
            ["9:12: 2 tasks are called 'short'; give each its own `name`."],
        ),
        ('"long*"', "lng", ["14:56: unknown task 'lng'."]),
        ("gamma: 2}}", "gamma: 2, tasks: [long-*]}}", ["6:5: task 'short' has no runs"]),
    ],
)
def test_what_is_wrong_with_a_task_has_its_location(study, old, new, messages):
    assert old in STUDY
    with pytest.raises(ConfigError) as caught:
        study(STUDY.replace(old, new, 1))
    for message in messages:
        assert message in str(caught.value)


def test_a_run_may_not_choose_where_there_is_no_choice(study):
    text = "target: {folder}\nprompts: [a]\nruns: [{{drafter: echo, gamma: 1, tasks: [x]}}]\n"
    with pytest.raises(ConfigError, match=r"3:.*this study has no `tasks`"):
        study(text)


def test_prompts_of_all_tasks_are_checked_before_the_first_takes_time(study):
    recorder = Recorder()
    with pytest.raises(PromptError, match=r"^long-temperature=0: prompt '2' has \d+ tokens"):
        run_study(study(STUDY, f"tasks.long.prompts=['a', '{'a ' * 300}']"), recorder)
    assert recorder.timed == []


def test_each_task_has_its_own_baseline(result_of):
    summaries = summarize(result_of())
    groups = by_task(summaries)
    assert [[one.name for one in group] for group in groups] == [
        ["baseline", "echo-2"],
        ["baseline", "echo-2", "only-long"],
        ["baseline", "echo-2", "only-long"],
    ]
    for group in groups:
        assert group[0].speedup == 1.0
        assert {one.task for one in group} == {one.config["task"] for one in group}
        assert results_table(group).title == group[0].task
    assert groups[0][0].tokens == 2 * 2 * 4
    assert groups[2][1].config["sampling"]["temperature"] == 1


def test_what_was_written_is_scored_and_compared(result_of):
    result = result_of()
    short, cold, warm = by_task(summarize(result))
    assert short[1].quality["references"] == 2
    assert short[1].quality["exact"] == 1.0
    assert short[1].quality["bleu"] == short[0].quality["bleu"]
    assert short[1].quality["differences"] == {}
    assert cold[1].quality["references"] == 0
    assert cold[1].quality["bleu"] is None
    table = quality_table(short)
    assert len(table.rows) == 2
    assert [column.heading for column in table.columns][:3] == ["run", "BLEU", "chrF"]
    assert quality_table(warm) is None
    assert verdict([*short, *cold]).departures == ()
    lines = list(output_lines(result.study, first_outputs(result)))
    assert len(lines) == 2 * 2 + 3 + 3
    baseline, other = (
        [one for one in lines if (one["task"], one["run"]) == ("short", run)] for run in ("baseline", "echo-2")
    )
    assert [one["prompt"] for one in baseline] == ["one", "2"]
    assert baseline[0]["source"] == "here"
    assert baseline[0]["references"] == ["a b c"]
    assert [one["tokens"] for one in baseline] == [one["tokens"] for one in other]
    assert len(baseline[0]["tokens"]) == 4
    assert all(one["same_as_baseline"] for one in baseline + other)
    argmax, sampled = (
        [one["tokens"] for one in lines if (one["task"], one["run"]) == (f"long-temperature={t}", "baseline")]
        for t in (0, 1)
    )
    assert argmax != sampled


def test_plain_sampling_is_not_tested_against_itself(study):
    short, *_ = by_task(
        summarize(run_study(study(STUDY, "tasks.short.sampling={temperature: 1}", "repeats=1"), Recorder()))
    )
    assert short[0].quality["differences"] == {}
    assert short[0].quality["exact"] == 1.0
    assert set(short[1].quality["differences"]) >= {"chrf"}


TWO_TARGETS = """\
generation: {{max_new_tokens: 12, ignore_eos: true}}
sampling: {{temperature: 0}}
repeats: 1
prompts: [a b c, d, e f]
tasks:
  - {{name: large, target: builtin:drafter}}
  - {{name: small, target: {folder}}}
runs:
  - {{name: picky, drafter: picky, gamma: 2}}
  - {{drafter: kept, gamma: 2}}
"""
PICKY = """
    import weakref
    from specdec_core import DeterministicDrafter, DrafterConfig, PluginSpec, hookimpl
    from specdec_core.interface import PluginError

    ALIVE = weakref.WeakSet()

    class Kept(DeterministicDrafter):
        def __init__(self, config, target):
            super().__init__(config, target)
            ALIVE.add(self)

        def draft(self, tokens, budget):
            return [1] * budget

    class Picky(Kept):
        def __init__(self, config, target):
            if target.vocab_size > 9:
                raise PluginError("too many words for me")
            super().__init__(config, target)

    class PickyConfig(DrafterConfig):
        pass

    @hookimpl
    def specdec_drafters():
        named = {"picky": "Picky", "kept": "Kept"}
        return [PluginSpec("drafter", name, f"picky_plugin:{part}", PickyConfig) for name, part in named.items()]
"""


def test_tasks_may_differ_in_their_target_and_a_run_may_fail_in_one(study, site, monkeypatch):
    for module in (runner, prepared):
        monkeypatch.setattr(module, "describe_hardware", lambda target: f"for {target.vocab_size} words")
    site.install("specdec-picky", "picky_plugin", PICKY)
    loaded = study(TWO_TARGETS)
    alive = []

    class Watching(Recorder):
        def stage(self, what, total=None):
            super().stage(what, total)
            if what.startswith("loading /"):  # the second target, a folder
                gc.collect()
                alive.append(len(importlib.import_module("picky_plugin").ALIVE))

    recorder = Watching()
    result = run_study(loaded, recorder)
    assert alive == [0], "what the first task loaded is gone before the second target is there"
    assert list(result.failed) == [("large", "picky")]
    tokens = {key: {t for one in repeat.outputs for t in one.tokens} for key, repeat in result.repeats.items()}
    assert set(tokens) == {("large", "baseline", 1), ("large", "kept-2", 1)} | {
        ("small", run, 1) for run in ("baseline", "picky", "kept-2")
    }
    assert max(tokens["large", "baseline", 1]) > 8 >= max(tokens["small", "baseline", 1]), "small knows nine words"
    large, small = by_task(summarize(result))
    assert large[1].error
    assert large[1].quality is None
    assert small[1].error is None
    assert small[1].quality["exact"] == 1
    assert {one.device for one in small} == {"for 9 words"} != {one.device for one in large}
    assert large[0].config["target"]["model"] != small[0].config["target"]["model"]
