"""Figures 2, 3 and 4 of the paper, drawn from the formulas.

The same call gives the same file, byte for byte, with the same version of matplotlib. The colors are those of
Okabe and Ito, which are safe for color-blind readers; every curve is also labeled at its end.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    sections 3.1 and 3.5. The paper does not give the gamma and c of each curve; the ones here are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_core.theory.speed import (
    expected_tokens,
    operations_increase,
    optimal_gamma,
    walltime_improvement,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Each gamma has the same color in all figures.
_COLOR_OF_GAMMA = {1: "#56B4E9", 3: "#0072B2", 5: "#D55E00", 7: "#009E73", 10: "#CC79A7"}
_COLOR_OF_COST = {0.01: "#0072B2", 0.02: "#D55E00", 0.05: "#009E73", 0.1: "#CC79A7"}
_GAMMAS_OF_FIGURE_4 = (3, 5, 7, 10)
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "specdec",  # element ids are random otherwise
    "svg.fonttype": "path",  # independent of installed fonts
    "font.family": "DejaVu Sans",  # ships with matplotlib
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "lines.linewidth": 2,
}


def draw_figure(number: int, path: Path) -> None:
    """Draw a figure of the paper into an SVG file.

    Args:
        number: 2 (expected tokens over alpha, for several gamma), 3 (optimal gamma over alpha, for several c) or
            4 (speed and operations over alpha, for several gamma, with c = c_hat = 0).
        path: The file.
    """
    import matplotlib as mpl
    import matplotlib.style
    from matplotlib.figure import Figure

    # "default" first, so that the user's matplotlibrc has no effect.
    with mpl.style.context(["default", _STYLE]):
        figure = Figure(figsize=(5.2, 3.6), layout="constrained")
        FIGURES[number](figure)
        # Without this, files contain the date and the version of matplotlib.
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": "specdec"})


def _expected_tokens(figure: Figure) -> None:
    """Draw Figure 2, equation (1)."""
    axes = _axes(figure, "Expected tokens per step", "tokens per step")
    alphas = [n / 200 for n in range(201)]
    for gamma, color in _COLOR_OF_GAMMA.items():
        _curve(axes, alphas, [expected_tokens(a, gamma) for a in alphas], f"γ = {gamma}", color=color)
    axes.plot(alphas[:-1], [1 / (1 - a) for a in alphas[:-1]], color="black", linestyle="--")
    axes.annotate("γ = ∞", (0.87, 11.3), ha="right", va="center")
    axes.set_ylim(0, 12)


def _optimal_gamma(figure: Figure) -> None:
    """Draw Figure 3, section 3.5."""
    axes = _axes(figure, "The optimal γ", "γ with the greatest improvement")
    alphas = [n / 1000 for n in range(951)]  # unbounded as alpha approaches 1
    for c, color in _COLOR_OF_COST.items():
        gammas = [optimal_gamma(a, c) for a in alphas]
        _curve(axes, alphas, gammas, f"c = {c}", color=color, drawstyle="steps-post")
    axes.set_xlim(0, alphas[-1])
    axes.set_ylim(bottom=0)


def _trade_off(figure: Figure) -> None:
    """Draw Figure 4, Theorems 3.8 and 3.11 with c = c_hat = 0."""
    axes = _axes(figure, "Speed and operations (c = ĉ = 0)", "factor over plain decoding")
    alphas = [n / 200 for n in range(201)]
    for gamma in _GAMMAS_OF_FIGURE_4:
        color = _COLOR_OF_GAMMA[gamma]
        _curve(axes, alphas, [walltime_improvement(a, gamma, 0) for a in alphas], f"γ = {gamma}", color=color)
        axes.plot(alphas, [operations_increase(a, gamma, 0) for a in alphas], color=color, linestyle="--")
    for label, linestyle in (("speed", "-"), ("operations", "--")):
        axes.plot([], [], color="#555555", linestyle=linestyle, label=label)
    axes.legend(loc="upper center", frameon=False, ncols=2)
    axes.set_ylim(0, 12)


FIGURES: dict[int, Callable[[Figure], None]] = {2: _expected_tokens, 3: _optimal_gamma, 4: _trade_off}
"""The function that draws each figure, by number."""


def _axes(figure: Figure, title: str, y_label: str) -> Axes:
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel("acceptance rate α")
    axes.set_ylabel(y_label)
    axes.set_xlim(0, 1)
    return axes


def _curve(axes: Axes, x: Sequence[float], y: Sequence[float], name: str, **style: Any) -> None:
    """Draw a curve with its name at the end."""
    axes.plot(x, y, **style)
    axes.annotate(name, (x[-1], y[-1]), (6, 0), textcoords="offset points", color=style["color"], va="center")
