"""The commands of the recipes: each shows its help; cards are those that ship; the pair's target is trained."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from recipes.builtin_pair import architectures, export, train
from recipes.builtin_pair import cards as pair_cards
from recipes.builtin_pair.results import effort
from recipes.builtin_pair.vocabulary import VOCABULARY_SIZE
from recipes.builtin_t5 import cards as t5_cards

RECIPES = Path(__file__).parents[2] / "models" / "recipes"
MODULES = [f"recipes.{path.parent.name}.{path.stem}" for path in sorted(RECIPES.glob("*/*.py"))]


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_and_commands_show_their_help(module, monkeypatch, capsys):
    main = getattr(importlib.import_module(module), "main", None)
    if main is None or module == "recipes.builtin_t5.programs":  # not a command, or one without options
        return
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("cards", [pair_cards, t5_cards])
def test_cards_are_those_that_ship(cards, monkeypatch, tmp_path):
    for folder in cards.FOLDERS.values():
        (tmp_path / folder.name).mkdir()
    monkeypatch.setattr(sys, "argv", ["cards", "--models", str(tmp_path)])
    cards.main()
    for folder in cards.FOLDERS.values():
        card = (tmp_path / folder.name / "README.md").read_text(encoding="utf-8")
        assert card == (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_target_of_the_pair_is_trained_and_exported(monkeypatch, tmp_path):
    for name in ("train", "held_out"):
        np.save(tmp_path / f"{name}.npy", np.arange(8192, dtype=np.uint16) % VOCABULARY_SIZE)
    shutil.copytree(architectures.FOLDERS["target"], tmp_path / "tokenizer")
    short = ["--minutes", "0.0001", "--batch", "1", "--processes", "1"]
    monkeypatch.setattr(sys, "argv", ["train", *short, "--work", str(tmp_path)])
    train.main()
    monkeypatch.setattr(
        sys, "argv", ["export", "--model", "target", "--work", str(tmp_path), "--out", str(tmp_path)]
    )
    export.main()
    trained = torch.load(tmp_path / "target.pt", weights_only=True)["model"]["model.norm.weight"]
    written = load_file(tmp_path / "target" / "model.safetensors")["model.norm.weight"]
    assert torch.equal(written, trained.half())


def test_the_effort_of_runs_that_continued_each_other_is_their_sum(tmp_path):
    torch.save({"progress": {"seconds": 60.0, "step": 3, "tokens": 700}}, tmp_path / "first.pt")
    points = [{"seconds": 1.0, "step": 1, "tokens": 10}, {"seconds": 120.0, "step": 20, "tokens": 5000}]
    (tmp_path / "curve.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    found = effort(tmp_path / "first.pt", tmp_path / "curve.jsonl")
    assert found == {"training_minutes": 3.0, "training_steps": 23, "training_tokens": 5700}
    assert effort() == {}
