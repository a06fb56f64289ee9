"""Compiled forward passes: when they are used, and that they equal eager ones."""

from __future__ import annotations

import pytest

from specdec_core.interface.errors import ModelError
from specdec_core.models import load_model, wrap_model
from specdec_core.models.compiling import compile_as_set, compile_model
from specdec_core.study.config.schema import TargetConfig
from tests.tiny import tiny_model


def test_a_model_on_a_cpu_is_compiled_only_when_asked():
    loaded = wrap_model(tiny_model("llama"))
    assert compile_as_set(loaded, "auto") is loaded
    assert compile_as_set(loaded, False) is loaded
    assert TargetConfig(model="x").compile == "auto"


def test_what_cannot_have_a_fixed_shape_is_refused_with_the_reason():
    loaded = wrap_model(tiny_model("llama")).row_by_row()
    assert compile_as_set(loaded, "auto") is loaded
    with pytest.raises(ModelError, match=r"a forward pass for each sequence.*Remove `compile`"):
        compile_model(loaded)


def test_load_model_compiles(monkeypatch, tmp_path):
    tiny_model("llama").save_pretrained(tmp_path)
    asked = []
    monkeypatch.setattr(
        "specdec_core.models.load.compile_as_set", lambda loaded, setting: asked.append(setting) or loaded
    )
    load_model(tmp_path, compile=True)
    load_model(tmp_path)
    assert asked == [True, "auto"]
