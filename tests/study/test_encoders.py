"""A drafter's model must have an encoder where the target has one: told with its location."""

import json

import pytest

from specdec_core.interface import ConfigError
from specdec_core.study import load_study

STUDY = """\
target: {target}
prompts: [a b c]
runs:
  - drafter: {drafter}
    gamma: 2
"""


@pytest.fixture
def problems(tmp_path, monkeypatch):
    """Return what is wrong with a study of a folder where `t5` has an encoder and `llama` has none."""
    for name, config in {
        "t5": {"is_encoder_decoder": True, "architectures": ["T5ForConditionalGeneration"]},
        "t5-small": {"is_encoder_decoder": True},
        "llama": {"architectures": ["LlamaForCausalLM"]},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # folders are meant from the study

    def find(target, drafter, text=STUDY):
        path = tmp_path / "study.yaml"
        path.write_text(text.replace("{target}", target).replace("{drafter}", drafter))
        try:
            load_study(path)
        except ConfigError as error:
            return [line.rpartition("study.yaml:")[2] for line in str(error).splitlines()]
        return []

    return find


BLIND, STARVED = "has no encoder", "has an encoder"


@pytest.mark.parametrize(
    ("target", "drafter", "expected"),
    [
        ("./t5", "{name: transformer, model: ./llama}", f"4:41: drafter 'transformer': ./llama {BLIND}"),
        ("./llama", "{name: transformer, model: ./t5}", f"4:41: drafter 'transformer': ./t5 {STARVED}"),
        (
            "./t5",
            "{name: hierarchical, model: llama, gamma: 2, drafter: {name: ngram, text: a}}",
            f"4:42: drafter 'hierarchical': llama {BLIND}",
        ),
        (
            "./t5",
            "{name: chain, drafters: [prompt-copy, {name: transformer, model: ./llama}]}",
            f"4:79: drafter 'transformer': ./llama {BLIND}",
        ),
        # The drafter below works for the model between.
        (
            "./t5",
            "{name: hierarchical, model: t5, gamma: 2, drafter: {name: transformer, model: ./llama}}",
            f"4:92: drafter 'transformer': ./llama {BLIND}",
        ),
    ],
)
def test_a_model_on_the_wrong_side_is_told_with_its_location(problems, target, drafter, expected):
    (problem,) = problems(target, drafter)
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("target", "drafter"),
    [
        ("./t5", "{name: transformer, model: ./t5-small}"),
        ("./t5", "{name: hierarchical, model: t5-small, gamma: 2, drafter: prompt-copy}"),
        ("./t5", "prompt-copy"),
        ("builtin:target", "{name: transformer, model: builtin:drafter}"),
        # What only the hub knows is known when it is loaded.
        ("./t5", "{name: transformer, model: owner/name}"),
        ("owner/name", "{name: transformer, model: ./t5}"),
    ],
)
def test_what_fits_or_is_not_known_is_let_through(problems, target, drafter):
    assert problems(target, drafter) == []


MIXED = """\
target: ./llama
prompts: [a]
tasks: [{name: baseline}, {name: small, target: ./t5}, {name: large, target: ./t5-small}]
runs:
  - {drafter: {name: transformer, model: ./llama}, gamma: 1}
  - {drafter: {name: transformer, model: ./t5}, gamma: 2, tasks: [small, large]}
  - {drafter: {name: transformer, model: ./t5}, gamma: 3, tasks: [baseline]}
"""


def test_where_only_some_tasks_do_not_fit_they_are_named(problems):
    found = problems("./llama", "ngram", MIXED)
    assert len(found) == 2
    assert found[0].startswith(f"5:42: in task 'small', 'large': drafter 'transformer': ./llama {BLIND}")
    assert found[1].startswith(f"7:42: drafter 'transformer': ./t5 {STARVED}")
