"""Loading of studies, and the messages for those that are refused."""

import json

import pytest

from specdec_core.interface import ConfigError
from specdec_core.registry.registry import default_registry
from specdec_core.study import BASELINE, RunLabels, load_study, study_schema

GOOD = """\
target: builtin:target
prompts: [a b c, d e f]
runs:
  - drafter: echo
    gamma: 2
"""


@pytest.fixture
def write(write, toys):
    return write


def test_a_small_study_has_defaults_and_the_baseline_first(write):
    study = load_study(write(GOOD))
    assert [run.name for run in study.runs] == [BASELINE, "echo-2"]
    assert study.runs[0].drafter is None
    assert study.runs[1].drafter.token == 1
    assert (study.config.repeats.min, study.config.repeats.max) == (3, 3)
    assert [prompt.text for prompt in study.tasks[0].prompts] == ["a b c", "d e f"]
    json.dumps([study.shared(), *(run.resolved() for run in study.runs)])


def test_what_may_be_said_in_full_or_in_short(write):
    text = (
        GOOD
        + """\
  - {name: full, drafter: {name: echo, token: 4}, gamma: {name: fixed, gamma: 5}, lenience: {name: constant}}
  - {drafter: echo, gamma: fixed, lenience: 0.5, draft_sampling: {temperature: 0}}
"""
    )
    _, _, full, short = load_study(write(text)).runs
    assert (full.drafter.token, full.gamma.gamma, full.lenience.lenience) == (4, 5, 1.0)
    assert full.labels == RunLabels("echo", 5, 1.0)
    assert (short.gamma.gamma, short.lenience.lenience, short.draft_sampling.temperature) == (3, 0.5, 0)
    assert short.name == "echo-3-lenience=0.5"


def test_a_grid_is_written_out(write):
    text = (
        GOOD
        + """\
  - {name: swept, drafter: echo, grid: {gamma: [1, 3], draft_sampling.temperature: [0.5, 1], drafter.token: [2]}}
"""
    )
    runs = load_study(write(text)).runs[2:]
    assert [run.name for run in runs] == [
        f"swept-gamma={gamma}-temperature={temperature}-token=2" for gamma in (1, 3) for temperature in (0.5, 1)
    ]
    assert [(run.gamma.gamma, run.draft_sampling.temperature, run.drafter.token) for run in runs] == [
        (1, 0.5, 2),
        (1, 1.0, 2),
        (3, 0.5, 2),
        (3, 1.0, 2),
    ]


def test_set_replaces_values(write):
    study = load_study(
        write(GOOD + "    name: mine\n"),
        ["generation.seed=7", "runs.mine.gamma=5", "runs.0.drafter.token=3", "prompts=[x]"],
    )
    assert study.config.generation.seed == 7
    assert (study.runs[1].gamma.gamma, study.runs[1].drafter.token) == (5, 3)
    assert study.tasks[0].prompts[0].text == "x"
    short = load_study(write(GOOD), ["target.dtype=float32", "prompts.limit=1"])
    assert (short.config.target.model, short.config.target.dtype) == ("builtin:target", "float32")
    assert len(short.tasks[0].prompts) == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gamma", "--set gamma: expected key=value"),
        ("runs.4.gamma=2", "4 is out of range"),
        ("runs.0.gamma=-1", "--set runs.0.gamma=-1: runs[0].gamma: input should be greater than or equal to 0"),
        ("seed=[1", "--set seed=[1:1:3: invalid YAML"),
    ],
)
def test_set_that_is_wrong_is_named(write, setting, message):
    with pytest.raises(ConfigError) as caught:
        load_study(write(GOOD), [setting])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "target: builtin:target",
            "targt: builtin:target",
            "1:1: unknown key 'targt'. Did you mean 'target'? Available: ",
        ),
        ("gamma: 2", "gamma: -1", "5:12: runs[0].gamma: input should be greater than or equal to 0; given -1."),
        ("gamma: 2", "name: baseline\n    gamma: 2", "5:11: the name 'baseline' is taken by the baseline"),
        ("[a b c, d e f]", "[]", "2:10: the list of prompts has no prompts"),
    ],
)
def test_what_is_wrong_has_line_and_column(problems, old, new, message):
    assert old in GOOD
    found = problems(GOOD.replace(old, new, 1))
    assert any(line.startswith(message) for line in found), found


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("gamma: 2", "gamma: [2, 4]", "`grid`"),
        ("drafter: echo", "drafter: {name: echo, token: [1, 2]}", "`grid`"),
        ("gamma: 2", "num_speculative_tokens: 2", "`gamma`"),
        ("drafter: echo", "assistant_model: big", "`drafter: {name: transformer"),
    ],
)
def test_what_other_tools_write_has_a_hint(problems, old, new, hint):
    assert any(hint in line for line in problems(GOOD.replace(old, new, 1)))


def test_all_that_is_wrong_is_said_at_once(problems):
    text = GOOD.replace("echo", "ecko").replace("gamma: 2", "gamma: -2").replace("target:", "targets:")
    assert [line.split(":")[0] for line in problems(text)] == ["1", "4", "5", "1"]


def test_a_grid_that_is_wrong_points_at_its_values(problems):
    text = GOOD.replace("gamma: 2", "grid: {gamma: [1, -1], draft_sampling.temprature: [1]}")
    found = problems(text)
    assert any(line.startswith("5:19: runs[0].gamma: input should be greater") for line in found), found
    assert any(line.startswith("5:28: runs[0].draft_sampling: unknown key 'temprature'") for line in found), found


@pytest.mark.parametrize("grid", ["{gamma: 3}", "{gamma: []}", "[gamma]", "{target.x: [1]}", "{gamma.x.y: [1]}"])
def test_a_grid_that_is_no_grid(problems, grid):
    assert problems(GOOD + f"    grid: {grid}\n")


def test_grids_and_the_runs_of_all_tasks_are_counted(problems, write):
    grid = "gamma: [1, 2, 3], draft_sampling.temperature: [0, 1]"
    text = GOOD.replace("gamma: 2", f"grid: {{{grid}}}")
    assert len(load_study(write(text), max_runs=6).runs) == 7
    with pytest.raises(ConfigError, match=r"study\.yaml:5:5: this grid makes 6 runs"):
        load_study(write(text), max_runs=5)
    text = "tasks: [{name: a}, {name: b, grid: {sampling.temperature: [0, 1]}}]\n" + text
    assert len(load_study(write(text), max_runs=18).tasks) == 3
    with pytest.raises(ConfigError, match="together have 18 runs; at most 17"):
        load_study(write(text), max_runs=17)


def test_two_runs_of_one_name(problems):
    found = problems(GOOD + "  - {drafter: echo, gamma: 2}\n")
    assert found == ["6:5: 2 runs are called 'echo-2'; give each its own `name`."]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a mapping of keys to values, but it is empty"),
        (b"a: 1\na: 2\n", ':2:1: invalid YAML: found duplicate key "a"'),
        (b"true: 2\n", "the key True is not a string"),
    ],
)
def test_a_file_that_is_no_study(tmp_path, toys, content, message):
    path = tmp_path / "study.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_study(path)
    assert message in str(caught.value)
    assert "study.yaml" in str(caught.value)


def test_a_missing_file(tmp_path, write):
    write(GOOD)
    with pytest.raises(ConfigError, match=r"the file does not exist\. Did you mean 'study\.yaml'\?"):
        load_study(tmp_path / "stydu.yaml")


def test_the_schema_knows_the_plugins(toys):
    schema = study_schema(default_registry())
    run = schema["$defs"]["Run"]["properties"]
    assert schema["$defs"]["EchoDrafter"]["properties"]["name"]["const"] == "echo"
    assert {"type": "number"} in run["gamma"]["anyOf"]
    assert run["drafter"]["anyOf"][1]["enum"] == ["absent", "echo", "single"]
    assert all("description" in field for field in run.values())


@pytest.mark.parametrize(
    ("written", "read", "resolved"),
    [
        ("2", (2, 2), 2),
        ("auto", (3, 10), {"min": 3, "max": 10, "spread": 0.05}),
        ("{max: 5}", (3, 5), {"min": 3, "max": 5, "spread": 0.05}),
        ("{min: 4, max: 20, spread: 0.02}", (4, 20), {"min": 4, "max": 20, "spread": 0.02}),
    ],
)
def test_how_often_runs_are_timed(write, written, read, resolved):
    loaded = load_study(write(GOOD), [f"repeats={written}"])
    assert (loaded.config.repeats.min, loaded.config.repeats.max) == read
    assert loaded.shared()["repeats"] == resolved


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("0", "repeats: expected a number of at least 1, 'auto', or a mapping of min, max, spread; given 0."),
        ("{min: 5, max: 4}", "repeats: 'max' (4) is less than 'min' (5)"),
    ],
)
def test_a_wrong_number_of_repeats(write, written, said):
    with pytest.raises(ConfigError) as caught:
        load_study(write(GOOD), [f"repeats={written}"])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_runs_are_told_apart_although_their_settings_hold_mappings(tmp_path):
    path = tmp_path / "study.yaml"
    mapped = "{name: transformer, model: builtin:drafter, quantization_config: {load_in_8bit: true}}"
    path.write_text(f"target: builtin:target\nprompts: [a]\nruns: [{{drafter: {mapped}, gamma: 1}}]\n")
    runs = load_study(path).runs
    assert len({run: run.name for run in (*runs, *runs)}) == 2
