"""Modules that `specdec export` writes: whatever folders and settings are called, only literals differ."""

import ast
from pathlib import Path

import pytest

from specdec_core.interface import ConfigError
from specdec_core.serving.transformers_folder import write_folder
from specdec_core.serving.vllm_module import write_proposer

NAMES = ["back\\slash\\N{x}", "line\nimport os", "quote'and\"both", "$command $settings", "{braces}%s", "'''"]


def vllm(folder: Path, text: str) -> Path:
    write_proposer(folder / "module.py", {"name": "ngram", "text": text}, f"serve {folder}", False)
    return folder / "module.py"


def transformers(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return write_folder(folder, None, {"drafter": {"name": "ngram", "text": text}, "gamma": 4}, False)


@pytest.mark.parametrize("write", [vllm, transformers])
def test_names_and_settings_become_literals_only(write, tmp_path):
    for number, name in enumerate(NAMES):
        source = write(tmp_path / f"{number}{name}", name).read_text(encoding="utf-8")
        assert name in [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]


def test_a_setting_without_a_literal_is_named(tmp_path):
    given = {"name": "heads", "share": float("nan")}
    with pytest.raises(ConfigError, match=r"settings: .*nan.* cannot be written as a Python literal"):
        write_proposer(tmp_path / "module.py", given, "serve", False)
