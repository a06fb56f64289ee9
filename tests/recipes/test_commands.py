"""Every command of the recipes shows its help, and the model cards are those that ship."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from recipes.builtin_digits import cards as digits_cards
from recipes.builtin_pair import cards as pair_cards
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


@pytest.mark.parametrize("cards", [digits_cards, pair_cards, t5_cards])
def test_cards_are_those_that_ship(cards, monkeypatch, tmp_path):
    for folder in cards.FOLDERS.values():
        (tmp_path / folder.name).mkdir()
    monkeypatch.setattr(sys, "argv", ["cards", "--models", str(tmp_path)])
    cards.main()
    for folder in cards.FOLDERS.values():
        card = (tmp_path / folder.name / "README.md").read_text(encoding="utf-8")
        assert card == (folder / "README.md").read_text(encoding="utf-8")
