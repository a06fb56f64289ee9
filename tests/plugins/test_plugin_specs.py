"""The specs of the two plugin packages are light, complete and importable."""

import importlib

import pytest

import specdec_drafters.plugin
import specdec_plugins.plugin
from specdec_core.interface import AcceptanceRule, Drafter, GammaController, LenienceController, Trainer
from specdec_core.registry.hookspecs import HOOKS_BY_KIND
from specdec_core.study import load_study

SPECS = [
    spec
    for hook in HOOKS_BY_KIND.values()
    for module in (specdec_drafters.plugin, specdec_plugins.plugin)
    for spec in getattr(module, hook, list)()
]
BASES = {
    "drafter": Drafter,
    "gamma": GammaController,
    "lenience": LenienceController,
    "rule": AcceptanceRule,
    "trainer": Trainer,
}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_factory_and_config_belong_together(spec):
    module, _, name = spec.factory.partition(":")
    factory = getattr(importlib.import_module(module), name)
    assert issubclass(factory, BASES[spec.kind])
    assert spec.summary.endswith(".")
    assert spec.shorthand is None or spec.shorthand in spec.config.model_fields
    assert all(field.description for field in spec.config.model_fields.values())


def test_trainers_are_called_as_what_they_train():
    names = {kind: {spec.name for spec in SPECS if spec.kind == kind} for kind in BASES}
    assert names["trainer"] <= names["drafter"]


STUDY = """
target: builtin:target
prompts: [a]
runs:
  - {drafter: prompt-lookup, gamma: 2}
  - {drafter: {name: prompt-lookup, min_match: 3}, gamma: 4}
  - {name: nested, drafter: {name: chain, drafters: [prompt-lookup, random]}, gamma: 1}
"""


def test_an_alias_means_the_plugin_and_its_name_is_shown(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    short, full, nested = load_study(path).runs[1:]
    assert (short.name, full.name) == ("prompt-copy-2", "prompt-copy-4")
    assert short.drafter.name == full.drafter.name == nested.drafter.drafters[0].name == "prompt-copy"
