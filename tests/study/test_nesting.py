"""Plugins in the settings of plugins: how a study names them, and what is said when it names them wrongly."""

import json

import pytest

from specdec_core import TargetInfo, default_registry
from specdec_core.interface import ConfigError, PluginError
from specdec_core.models.load.model_requirements import unmet_requirements
from specdec_core.registry.requirements import TargetFacts
from specdec_core.study import RunLabels, load_study, run_model
from tests.commands import run_command

NESTS = """
    from typing import Annotated, Any
    from pydantic import Field
    from specdec_core import DrafterConfig, PluginSpec, hookimpl
    from specdec_core.interface import Nested, NestedDrafter, NestedGamma

    class PackConfig(DrafterConfig):
        drafters: Annotated[tuple[NestedDrafter, ...], Field(min_length=1)]
        \"\"\"Several.\"\"\"
        spare: NestedDrafter | None = None
        \"\"\"One or none.\"\"\"
        called: dict[str, NestedDrafter] = {}
        \"\"\"By name.\"\"\"
        pace: NestedGamma = 2
        \"\"\"How many.\"\"\"
        most: Annotated[int, Field(ge=1)] = 8
        \"\"\"A setting of its own.\"\"\"

    class MiddleConfig(DrafterConfig):
        model: str = "m"
        \"\"\"The model.\"\"\"
        drafter: Annotated[Any, Nested("drafter", same_target=False)]
        \"\"\"Who guesses for the model.\"\"\"

    class ReaderConfig(DrafterConfig):
        needs_tokenizer = True
        file: str = "words"
        \"\"\"A file.\"\"\"

    class LookerConfig(DrafterConfig):
        needs_hidden_states = True
        file: str = "words"
        \"\"\"A file.\"\"\"

    @hookimpl
    def specdec_drafters():
        return [
            PluginSpec("drafter", "pack", "nest_parts:Pack", PackConfig),
            PluginSpec("drafter", "middle", "nest_parts:Middle", MiddleConfig),
            PluginSpec("drafter", "reader", "nest_parts:Reader", ReaderConfig),
            PluginSpec("drafter", "looker", "nest_parts:Reader", LookerConfig),
        ]
"""

PARTS = """
    from dataclasses import replace
    from specdec_core import DeterministicDrafter

    class Reader(DeterministicDrafter):
        def draft(self, tokens, budget):
            return [1] * budget

    class Pack(DeterministicDrafter):
        def __init__(self, config, target):
            super().__init__(config, target)
            self.inner = [target.build("drafter", one, target) for one in config.drafters]
            self.pace = target.build("gamma", config.pace, target)

        def draft(self, tokens, budget):
            return self.inner[0].draft(tokens, min(budget, self.pace.max_gamma))

    class Middle(DeterministicDrafter):
        def __init__(self, config, target):
            super().__init__(config, target)
            below = replace(target, tokenizer=None, encoder_decoder=False)
            self.inner = target.build("drafter", config.drafter, below)

        def draft(self, tokens, budget):
            return self.inner.draft(tokens, budget)
"""

STUDY = """\
target: builtin:target
prompts: [a b c]
runs:
  - drafter: {drafter}
    gamma: 2
"""


@pytest.fixture
def nests(toys):
    toys.module("nest_parts", PARTS)
    toys.install("specdec-nests", "nest_plugin", NESTS)
    return toys


@pytest.fixture
def load(tmp_path, nests):
    def load_text(drafter, *settings, more="", target="builtin:target"):
        path = tmp_path / "study.yaml"
        path.write_text(STUDY.replace("{drafter}", drafter).replace("builtin:target", target) + more)
        return load_study(path, settings)

    return load_text


@pytest.fixture
def problems(load):
    def find(*arguments, **options):
        with pytest.raises(ConfigError) as caught:
            load(*arguments, **options)
        return [line.rpartition("study.yaml:")[2] for line in str(caught.value).splitlines()]

    return find


NESTED = (
    "{name: pack, drafters: [echo, {name: pack, drafters: [{name: echo, token: 4}], pace: 5}], "
    "spare: {name: middle, drafter: {name: pack, drafters: [single]}}, called: {a: echo}}"
)


def test_plugins_are_read_at_every_depth(load):
    drafter = load(NESTED).runs[1].drafter
    assert [one.name for one in drafter.drafters] == ["echo", "pack"]
    assert drafter.drafters[1].drafters[0].token == 4
    assert (drafter.drafters[1].pace.name, drafter.drafters[1].pace.gamma) == ("fixed", 5)
    assert drafter.spare.drafter.drafters[0].name == "single"
    assert drafter.called["a"].token == 1
    # A default is written as a study would write it, and read like that.
    assert (drafter.pace.name, drafter.pace.gamma) == ("fixed", 2)


def test_results_and_journal_hold_all_of_it(load):
    resolved = load(NESTED).runs[1].resolved()
    inner = resolved["drafter"]["drafters"][1]
    assert inner["drafters"] == [{"token": 4, "breaks": False, "name": "echo"}]
    assert inner["pace"] == {"gamma": 5, "name": "fixed"}
    assert resolved["drafter"]["spare"]["drafter"]["drafters"][0]["name"] == "single"
    again = json.dumps(resolved["drafter"])
    assert load(again).runs[1].resolved() == {**resolved, "name": load(again).runs[1].name}
    assert load(NESTED.replace("token: 4", "token: 5")).runs[1].resolved() != resolved


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (
            "{name: pack, drafters: [single, {name: echo, tokn: 1}]}",
            "4:59: runs[0].drafter.drafters[1]: unknown key 'tokn'. Did you mean 'token'? Available: breaks, name",
        ),
        (
            "{name: pack, drafters: [echo], called: {x: {name: echo, token: -1}}}",
            "4:77: runs[0].drafter.called.x.token: input should be greater than or equal to 0; given -1.",
        ),
        (
            "{name: middle, drafter: {name: pack, drafters: [{name: middle, drafter: {name: pack}}]}}",
            "4:86: runs[0].drafter.drafter.drafters[0].drafter: missing key 'drafters'; write",
        ),
    ],
)
def test_what_is_wrong_inside_has_line_and_column(problems, drafter, message):
    found = problems(drafter)
    assert any(line.startswith(message) for line in found), found


def test_set_leads_into_nested_settings(load):
    settings = [
        "runs.0.drafter.drafters.0.token=3",
        "runs.0.drafter.drafters.1.drafters.0.token=6",
        "runs.0.drafter.spare.drafter=echo",
        "runs.0.drafter.called.a.token=7",
        "runs.0.drafter.pace=9",
    ]
    drafter = load(NESTED, *settings).runs[1].drafter
    assert drafter.drafters[0].token == 3
    assert drafter.drafters[1].drafters[0].token == 6
    assert (drafter.spare.drafter.name, drafter.called["a"].token, drafter.pace.gamma) == ("echo", 7, 9)


def test_set_finds_a_nested_drafter_by_its_name(load, problems):
    text = "{name: pack, drafters: [single, {name: echo, token: 4}, {name: pack, drafters: [echo]}]}"
    drafter = load(text, "runs.0.drafter.drafters.echo.token=3", "runs.0.drafter.drafters.single.token=2").runs[1]
    assert [one.token for one in drafter.drafter.drafters[:2]] == [2, 3]
    assert "unknown entry of runs.0.drafter.drafters 'ecko'. Did you mean 'echo'" in str(
        problems(text, "runs.0.drafter.drafters.ecko.token=3")
    )
    twice = "{name: pack, drafters: [echo, echo]}"
    assert "2 entries of runs.0.drafter.drafters are called 'echo'" in str(
        problems(twice, "runs.0.drafter.drafters.echo.token=3")
    )


def test_a_grid_leads_into_nested_settings(load, problems):
    text = "{name: middle, drafter: {name: pack, drafters: [echo, single]}}"
    grid = "    grid: {drafter.drafter.drafters.1.token: [2, 3], drafter.model: [x, y]}\n"
    runs = load(text, more=grid).runs[1:]
    assert [(run.drafter.drafter.drafters[1].token, run.drafter.model) for run in runs] == [
        (2, "x"),
        (2, "y"),
        (3, "x"),
        (3, "y"),
    ]
    assert runs[0].name == "middle(pack(echo, single))-2-token=2-model=x"
    grid = "    grid: {drafter.drafter.drafters.single.token: [2, -3]}\n"
    (found,) = problems(text, more=grid)
    assert found.startswith("6:51: runs[0].drafter.drafter.drafters[1].token: input should be greater"), found


def test_runs_are_named_after_all_drafters(load):
    grid = "    grid: {drafter.drafters: [[echo], [echo, single]], gamma: [1, 2]}\n"
    runs = load("{name: pack, spare: echo, drafters: [echo]}", more=grid).runs[1:]
    names = [
        "pack(echo, echo)-1",
        "pack(echo, echo)-2",
        "pack(echo, single, echo)-1",
        "pack(echo, single, echo)-2",
    ]
    assert [run.name for run in runs] == names
    assert runs[2].labels == RunLabels("pack(echo, single, echo)", 1, 1.0)
    named = load("{name: pack, drafters: [echo]}", more="    name: mine\n" + grid).runs[1:]
    assert [run.name for run in named][1:3] == [
        "mine-drafters=(echo)-gamma=2",
        "mine-drafters=(echo, single)-gamma=1",
    ]


def test_what_a_nested_drafter_cannot_do_is_seen_before_anything_is_loaded(problems, load, tmp_path):
    text = "{name: pack, drafters: [echo, {name: pack, drafters: [single]}]}"
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "config.json").write_text('{"is_encoder_decoder": true}')
    assert problems(text, target="./t5")[0].startswith("4:68: drafter 'single' works for decoder-only targets")
    # What works for a model between is not held against the target.
    below = text.replace("{name: pack, drafters: [single]}", "{name: middle, drafter: single}")
    load(below, target="./t5")


@pytest.mark.parametrize(
    ("drafter", "fact", "found_at"),
    [
        ({"name": "pack", "drafters": ["echo", "reader"]}, "has_tokenizer", ("drafters", 1)),
        ({"name": "pack", "drafters": ["looker"]}, "has_hidden_states", ("drafters", 0)),
        ({"name": "middle", "drafter": "looker"}, "has_hidden_states", None),
        ({"name": "middle", "drafter": {"name": "pack", "drafters": ["reader"]}}, "has_tokenizer", None),
        ("looker", "has_hidden_states", ()),
    ],
)
def test_needs_are_asked_of_all_that_work_for_the_target(nests, drafter, fact, found_at):
    config = run_model(default_registry()).model_validate({"drafter": drafter, "gamma": 1}).drafter

    def unmet(**facts):
        return [keys for keys, _ in unmet_requirements(default_registry(), config, TargetFacts(**facts))]

    assert unmet(**{fact: False}) == ([] if found_at is None else [found_at])
    assert not unmet(**{fact: True})
    assert not unmet()


@pytest.fixture
def make(nests):
    def make_drafter(drafter, **target):
        registry = default_registry()
        config = run_model(registry).model_validate({"drafter": drafter, "gamma": 1}).drafter
        return registry.create("drafter", config.name, config, TargetInfo(**{"vocab_size": 8, **target}))

    return make_drafter


def test_the_registry_makes_what_is_nested(make, tmp_path):
    pack = {"name": "pack", "drafters": [{"name": "echo", "token": 5}], "pace": 3}
    made = make({"name": "middle", "drafter": pack}, folder=tmp_path)
    assert made.draft([1], 8) == [5, 5, 5]
    assert made.inner.inner[0].target.folder == tmp_path


def test_the_registry_names_the_nested_plugin_that_cannot_be_made(make):
    with pytest.raises(PluginError, match=r"drafter 'absent' of specdec-toys 1\.0 could not be imported"):
        make({"name": "pack", "drafters": ["absent"]})
    # The model between has no tokenizer, whatever the target has.
    with pytest.raises(PluginError, match="drafter 'reader' reads text, but this target has no tokenizer"):
        make({"name": "middle", "drafter": "reader"}, tokenizer=object())
    make({"name": "pack", "drafters": ["reader"]}, tokenizer=object())
    with pytest.raises(PluginError, match="drafter 'looker' needs hidden states"):
        make({"name": "pack", "drafters": ["looker"]})
    make({"name": "pack", "drafters": ["looker"]}, features=object())


def test_generate_takes_nested_drafters(nests, model_folder):
    drafter = "{name: pack, drafters: [{name: echo, token: 2}, reader], pace: 3}"
    options = ["--model", str(model_folder), "--max-new-tokens", "6", "--strict", "--drafter", drafter]
    result = run_command("generate", "a b c", *options)
    assert result.exit_code == 0, result.output
