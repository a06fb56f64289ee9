"""Studies that somebody made to break the program: each is refused in little time, with few words."""

import pytest

from specdec_core.interface import SpecdecError
from specdec_core.study import load_study

GOOD = """\
target: builtin:target
prompts: [a b c]
runs:
  - {drafter: echo, gamma: 2}
"""


@pytest.fixture
def load(tmp_path, toys):
    def read(text, **options):
        path = tmp_path / "study.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return load_study(path, **options)

    return read


@pytest.fixture
def refused(load):
    def read(text, **options):
        with pytest.raises(SpecdecError) as caught:
            load(text, **options)
        said = str(caught.value)
        return said if "\n" in said else said.rpartition("study.yaml:")[2]

    return read


@pytest.mark.parametrize(
    "value",
    [
        *("!!python/object:os.system x", "!!binary aGVs", "!!timestamp 2001-01-01", "!!set {a, b}"),
        *("!!omap [a: 1]", "!!pairs [a: 1]", "!!bool x", "!!float ''", "!!int ''", "!!str {}"),
        *("!mine {a: 1}", "!mine [1]"),
    ],
)
def test_tags_are_refused_with_their_location(refused, value):
    assert refused(GOOD.replace("builtin:target", value)).startswith("1:9: tags such as ")


def test_a_text_may_be_tagged_as_one(load):
    assert load(GOOD.replace("[a b c]", "[!!str 1, 'wow!']")).tasks[0].prompts[0].text == "1"


@pytest.mark.parametrize("value", ["{<<: {model: 'builtin:target'}}", "{<<: [{model: 'builtin:target'}]}"])
def test_what_is_merged_needs_no_location(load, value):
    assert load(GOOD.replace("builtin:target", value)).tasks[0].target.model == "builtin:target"


@pytest.mark.parametrize("number", ["1" * 5000, "-" + "9" * 4400, "0x" + "f" * 5000, "0o" + "7" * 9000])
def test_numbers_of_thousands_of_digits(refused, number):
    said = refused(GOOD.replace("gamma: 2", f"gamma: {number}"))
    assert "too large" in said
    assert said.startswith("4:")
    assert len(said) < 300
    assert "out of range" in refused(GOOD, settings=[f"runs.{'1' * 5000}.gamma=2"])


@pytest.mark.parametrize("path", ['"a\\0b"', "~no-such-user/x", "n" * 300, '"\\uD800"', "/dev/zero", "."])
@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("model", "builtin:target", "{}"),
        ("file", "[a b c]", "{{file: {}}}"),
        ("chat_template", "[a b c]", "{{texts: [a], chat: true, chat_template: {}}}"),
        ("dataset", "[a b c]", "{{dataset: {}}}"),
    ],
)
def test_paths_that_lead_nowhere(refused, key, old, new, path):
    if (key, path) in {("model", "."), ("dataset", "."), ("dataset", "n" * 300)}:
        return  # folders, and a name on the hub
    if key == "dataset":
        pytest.importorskip("datasets")
    assert refused(GOOD.replace(old, new.format(path)))


def test_a_grid_is_counted_before_it_is_made(load, refused):
    grid = "grid: {gamma: [1, 2, 3], draft_sampling.temperature: [0, 1]}"
    text = GOOD.replace("gamma: 2", grid)
    assert len(load(text, max_runs=6).runs) == 7
    told = refused(text, max_runs=5)
    assert told.startswith("4:21: this grid makes 6 runs (gamma 3 x draft_sampling.temperature 2); at most 5")
    assert "--max-runs" in told
    two = text + f"  - {{name: b, drafter: echo, {grid}}}\n"
    assert refused(two, max_runs=11).startswith("3:1: with grids expanded there are 12 runs; at most 11 are")
    values = list(range(1, 300))
    huge = f"grid: {{gamma: {values}, drafter.token: {values}, draft_sampling.temperature: {values}}}"
    assert "makes 26,730,899 runs" in refused(GOOD.replace("gamma: 2", huge))


def test_the_runs_of_all_tasks_are_counted(load, refused):
    text = GOOD.replace("gamma: 2", "grid: {gamma: [1, 2, 3]}")
    text += "tasks: [{name: a}, {name: b, grid: {sampling.temperature: [0, 1]}}]\n"
    assert refused(text, max_runs=8).startswith("5:1: the tasks together have 9 runs; at most 8 are allowed.")
    assert len(load(text, max_runs=9).tasks) == 3
    assert len(load(text.replace("echo,", "echo, tasks: [a, b*],"), max_runs=9).tasks) == 3
    chosen = "tasks: [{name: a}, {name: b}]\n" + GOOD + "  - {name: c, drafter: echo, gamma: 1, tasks: [b]}\n"
    assert "the tasks together have 3 runs" in refused(chosen, max_runs=2)
    assert [len(task.runs) for task in load(chosen, max_runs=3).tasks] == [2, 3]


def test_of_many_problems_the_first_are_reported(refused):
    unknown = refused(GOOD + "".join(f"promqts{number}: 1\n" for number in range(1000))).splitlines()
    assert len(unknown) == 21
    assert unknown[-1] == "980 more problems are not shown."
    doubled = "".join(f"  - {{name: n{number // 2}, drafter: echo, gamma: 2}}\n" for number in range(200))
    named = refused(GOOD + doubled).splitlines()
    assert len(named) == 21
    assert named[-1] == "These are the first problems; there may be more."


def test_a_study_that_expands_or_nests_without_end(refused):
    levels = "".join(f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]\n" for number in range(1, 10))
    assert "more than 20,000 values" in refused(f"a0: &a0 [1]\n{levels}")
    assert "nested too deeply" in refused("x: " + "[" * 120 + "]" * 120)


def test_what_is_too_large_is_rejected_before_it_is_loaded(refused, monkeypatch):
    def load(*_):
        raise AssertionError("ruamel.yaml was asked to load it")

    monkeypatch.setattr("ruamel.yaml.YAML.load", load)
    keys = ", ".join(f"a{number}: 1" for number in range(300))
    merged = "\n".join(f"n{number}: {{<<: *m}}" for number in range(300))
    assert "more than 20,000 values" in refused(f"m: &m {{{keys}}}\n{merged}")
    chain = "\n".join(f"m{number}: &m{number} {{<<: *m{number - 1}, a{number}: 1}}" for number in range(1, 300))
    assert "more than 20,000 values" in refused(f"m0: &m0 {{}}\n{chain}")
    assert "more than 20,000 values" in refused("a: [" + "1," * 100_000 + "1]")


def test_a_long_name_is_not_repeated_in_full(refused):
    assert len(refused(GOOD.replace("echo", "x" * 50_000))) < 500
    assert len(refused(GOOD + f"? {'x' * 50_000}\n: 1\n")) < 500
    assert len(refused(GOOD, settings=["runs.0.drafter=echo.x", f"{'x' * 50_000}=1"])) < 600
