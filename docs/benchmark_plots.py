"""The drawing of docs/benchmarks.md, from docs/data/vs_transformers.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "vs_transformers.json"
_METHODS = {
    "baseline": ("plain decoding", "#666666"),
    "lookup": ("copying from the prompt", "#D55E00"),
    "assisted": ("a draft model", "#0072B2"),
}
_LIBRARIES = {
    "specdec, packed": ("specdec", "packed", "o-"),
    "specdec, unpacked": ("specdec", "plain", "s--"),
    "transformers": ("transformers", "plain", "x:"),
}


def draw(path: Path) -> None:
    """Draw the speed of each method of both libraries over the size of the target.

    Above are single sequences and below batches of four, for which transformers has plain decoding only; left is
    temperature 0 and right 1.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    groups = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    with mpl.rc_context({"svg.hashsalt": "specdec", "svg.fonttype": "path", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(5.8, 8), layout="constrained")
        panels = figure.subplots(2, 2, sharey="row")
        for row, batch_size in zip(panels, (1, 4), strict=True):
            for axes, temperature in zip(row, (0, 1), strict=True):
                key = {"batch_size": batch_size, "temperature": temperature}
                shown = [one for one in groups if key.items() <= one["key"].items()]
                _lines(axes, shown, against_all=batch_size == 1)
                axes.set(title=f"batch size {batch_size}, temperature {temperature}", yscale="log")
                axes.spines[["top", "right"]].set_visible(False)
            row[0].set_ylabel("tokens/s")
        lines = panels[0][0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside lower center", frameon=False)
        figure.savefig(path, metadata={"Date": None})


def _lines(axes: Any, groups: Sequence[dict[str, Any]], *, against_all: bool) -> None:
    """Draw a line for each method and library into a panel."""
    sizes = [one["key"]["size"] for one in groups]
    for method, (words, color) in _METHODS.items():
        for name, (library, configuration, style) in _LIBRARIES.items():
            if library == "specdec" or against_all or method == "baseline":
                rows = [{(r["method"], r["configuration"]): r for r in one["rows"]} for one in groups]
                speeds = [row[method, configuration][f"{library}_tokens_per_second"]["median"] for row in rows]
                axes.plot(sizes, speeds, style, color=color, label=f"{name}: {words}")
