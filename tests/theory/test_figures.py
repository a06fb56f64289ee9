"""Figures 2, 3 and 4."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specdec_core.interface import ConfigError
from specdec_core.theory.paper.figures import FIGURES, check_figure, draw_figure

NAMES = {2: ["γ = 1", "γ = 10", "γ = ∞"], 3: ["c = 0.01", "c = 0.1"], 4: ["γ = 3", "speed", "operations"]}


@pytest.mark.parametrize("number", FIGURES)
def test_a_drawing_says_what_is_in_it(number, tmp_path):
    file = tmp_path / "figure.svg"
    draw_figure(number, file)
    text = file.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    # matplotlib writes every piece of text it draws into a comment.
    said = re.findall(r"<!-- (.*?) -->", text)
    assert {*NAMES[number], "acceptance rate α"} <= set(said)


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_same_call_draws_the_same_file(suffix, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    import matplotlib as mpl

    first, second = (tmp_path / f"{name}{suffix}" for name in "ab")
    draw_figure(3, first)
    # What somebody likes in his own drawings does not show.
    monkeypatch.setitem(mpl.rcParams, "font.size", 30.0)
    monkeypatch.setitem(mpl.rcParams, "axes.facecolor", "red")
    draw_figure(3, second)
    assert first.read_bytes() == second.read_bytes()
    assert mpl.rcParams["font.size"] == 30


def test_a_png_is_one(tmp_path):
    draw_figure(2, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("number", "name", "said"),
    [
        (1, "a.svg", "figure 1 does not exist; available: 2, 3, 4."),
        (2, "a.pdf", "output a.pdf: unsupported suffix '.pdf'; use .svg or .png."),
        (2, "a", "use .svg or .png"),
    ],
)
def test_what_cannot_be_drawn_is_said(number, name, said):
    for function in (check_figure, draw_figure):
        with pytest.raises(ConfigError, match=re.escape(said)):
            function(number, Path(name))


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'specdec-core\[report\]'"):
        draw_figure(2, tmp_path / "figure.svg")
    assert not list(tmp_path.iterdir())
