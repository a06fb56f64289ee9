"""What the two plugin packages announce is light, complete and importable."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import specdec_drafters.plugin
import specdec_plugins.plugin
from specdec_core.border import Drafter, GammaController, LenienceController

SPECS = [
    *specdec_drafters.plugin.specdec_drafters(),
    *specdec_plugins.plugin.specdec_gamma_controllers(),
    *specdec_plugins.plugin.specdec_lenience_controllers(),
]
BASES = {"drafter": Drafter, "gamma": GammaController, "lenience": LenienceController}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_factory_and_config_belong_together(spec):
    module, _, name = spec.factory.partition(":")
    factory = getattr(importlib.import_module(module), name)
    assert issubclass(factory, BASES[spec.kind])
    assert factory.Config is spec.config
    assert spec.summary.endswith(".")
    assert spec.shorthand is None or spec.shorthand in spec.config.model_fields
    assert all(field.description for field in spec.config.model_fields.values())


def test_names():
    assert [(spec.kind, spec.name) for spec in SPECS] == [
        ("drafter", "random"),
        ("drafter", "prompt-copy"),
        ("drafter", "ngram"),
        ("drafter", "transformer"),
        ("gamma", "fixed"),
        ("lenience", "constant"),
    ]


def test_announcing_imports_neither_torch_nor_numpy():
    code = (
        "import sys, specdec_drafters.plugin, specdec_plugins.plugin\n"
        "print(sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
