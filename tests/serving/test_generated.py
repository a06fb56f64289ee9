"""Modules that `specdec export` writes: whatever folders and settings are called, only literals differ."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

import pytest

from specdec_core.interface import ConfigError
from specdec_core.serving.transformers_folder import write_folder
from specdec_core.serving.vllm_module import write_proposer

INJECTION = 'x"""+__import__("os").system("false")+"""'
NAMES = [
    INJECTION,
    "back\\slash\\N{x}",
    "line\nimport os",
    "quote'and\"both",
    "$command $settings",
    "{braces}%s",
    "\udcff",  # a file name that is not UTF-8
    "tab\tand\r",
    "'''",
]


def random_names(seed: int, number: int) -> list[str]:
    """Return names of characters that mean something in Python, in a shell and in a template."""
    random = Random(seed)
    letters = "ab\"'\\\n\r\t ${}#();=@+\u2028\u00e9"
    return ["".join(random.choices(letters, k=random.randint(1, 12))) for _ in range(number)]


def vllm(folder: Path, text: str) -> Path:
    return write_proposer(folder, {"name": "ngram", "text": text}, "ngram", 4, False)


def transformers(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return write_folder(folder, None, {"drafter": {"name": "ngram", "text": text}, "gamma": 4}, False)


def structure(source: str) -> str:
    """Return a module without its literals."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = None
    return ast.dump(tree)


@pytest.mark.parametrize("write", [vllm, transformers])
def test_names_and_settings_become_literals_only(write, tmp_path):
    plain = structure(write(tmp_path / "plain", "text.py").read_text(encoding="utf-8"))
    for number, name in enumerate([*NAMES, *random_names(27, 60)]):
        folder = tmp_path / f"{number}{name}"
        source = write(folder, name).read_text(encoding="utf-8")
        assert structure(source) == plain, name
        literals = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
        assert name in literals


def test_a_setting_without_a_literal_is_named(tmp_path):
    given = {"name": "heads", "share": float("nan")}
    with pytest.raises(ConfigError, match=r"settings: .*nan.* cannot be written as a Python literal"):
        write_proposer(tmp_path, given, "heads", 4, False)
