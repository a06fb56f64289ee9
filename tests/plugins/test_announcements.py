"""What the two plugin packages announce is light, complete and importable."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import specdec_drafters.plugin
import specdec_plugins.plugin
from specdec_core.border import Drafter, GammaController, LenienceController, Trainer
from specdec_core.registry import HOOK_OF_KIND

SPECS = [
    spec
    for hook in HOOK_OF_KIND.values()
    for module in (specdec_drafters.plugin, specdec_plugins.plugin)
    for spec in getattr(module, hook, list)()
]
BASES = {"drafter": Drafter, "gamma": GammaController, "lenience": LenienceController, "trainer": Trainer}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_factory_and_config_belong_together(spec):
    module, _, name = spec.factory.partition(":")
    factory = getattr(importlib.import_module(module), name)
    assert issubclass(factory, BASES[spec.kind])
    assert factory.Config is spec.config
    assert spec.summary.endswith(".")
    assert spec.shorthand is None or spec.shorthand in spec.config.model_fields
    assert all(field.description for field in spec.config.model_fields.values())


def test_names():
    names = {kind: sorted(spec.name for spec in SPECS if spec.kind == kind) for kind in BASES}
    assert names == {
        "drafter": ["chain", "heads", "hierarchical", "ngram", "prompt-copy", "random", "transformer"],
        "gamma": ["additive", "confidence", "cost-aware", "fixed", "optimal", "running-average"],
        "lenience": ["argmax", "budgeted", "constant", "schedule"],
        "trainer": ["heads", "ngram", "transformer"],
    }


def test_trainers_are_called_as_what_they_train():
    names = {kind: {spec.name for spec in SPECS if spec.kind == kind} for kind in BASES}
    assert names["trainer"] <= names["drafter"]


def test_announcing_imports_neither_torch_nor_numpy():
    code = (
        "import sys, specdec_drafters.plugin, specdec_plugins.plugin\n"
        "print(sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
