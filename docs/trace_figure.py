"""The trace of a real decoding, for the interactive figure of a page and the picture of the first screen.

    python docs/trace_figure.py    decode anew and write docs/data/trace.json

The site shows the interactive figure in place of what stands between `<!-- the trace -->` and
`<!-- end of the trace -->` (`docs/hooks.py`). The picture,
docs/assets/figures/trace.svg, is kept in the repository for the README; `docs/generate.py` renews and checks it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from specdec_core.trace.figure import shown, trace_html

DATA = Path(__file__).parent / "data" / "trace.json"
PICTURE = Path(__file__).parent / "assets" / "figures" / "trace.svg"
MARKER = "<!-- the trace -->"
_MARKED = re.compile(rf"{MARKER}(?:.*<!-- end of the trace -->)?", re.DOTALL)
PROMPT = "import os\n\ndef read"
SEED, TOKENS, GAMMA, TEMPERATURE = 3, 23, 5, 0.6
ROUNDS = 30

_COLORS = {"accepted": "#b7e4c0", "rejected": "#f6b8b3", "recovered": "#b9d2fb", "bonus": "#a9e2e4"}
_LETTER, _LINE, _LEFT = 8.4, 30, 84


def record() -> dict[str, Any]:
    """Decode the prompt with the models that ship, and return the trace of the fastest round."""
    from specdec_core import Decoder, TraceObserver, load_model

    drafter = {"name": "transformer", "model": "builtin:drafter"}
    decoder = Decoder(load_model("builtin:target"), drafter, gamma=GAMMA, temperature=TEMPERATURE, strict=True)
    traces = []
    for _ in range(ROUNDS):
        observer = TraceObserver(probabilities=True)
        decoder.generate(PROMPT, seed=SEED, max_new_tokens=TOKENS, observers=[observer])
        traces += observer.traces()
    return min(traces, key=lambda trace: sum(step["seconds"] for step in trace["steps"]))


def write(trace: Mapping[str, Any], path: Path = DATA) -> None:
    """Write a trace as JSON, a line for each step."""
    head = json.dumps({name: value for name, value in trace.items() if name != "steps"})
    steps = ",\n".join(json.dumps(step, ensure_ascii=False) for step in trace["steps"])
    path.write_text(f'{head[:-1]}, "steps": [\n{steps}\n]}}\n', encoding="utf-8")


def read(path: Path = DATA) -> dict[str, Any]:
    """Return the trace of a file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def on_page(page: str) -> str:
    """Return the HTML of a page with the interactive figure in place of the picture."""
    return _MARKED.sub(lambda _: trace_html(read()), page)


def svg() -> str:
    """Return the picture: a line for each step, with a box for each token."""
    trace = read()
    steps = trace["steps"]
    lines = list(_lines(steps))
    width = max(_LEFT + 170, *(round(end) for _, end in lines)) + 16
    below = 16 + _LINE * len(steps)
    legend, at = [], 16.0
    for fate in _COLORS:
        box, end = _box(fate, fate, at, below + 12)
        legend.append(box)
        at = end + 10
    height = below + 50
    label = f"{trace['tokens']} tokens in {len(steps)} forward passes of the target; each line is one pass."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{label}">\n'
        "<style>text { font: 14px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #222; "
        "white-space: pre; }</style>\n"
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>\n'
        + "\n".join([*(line for line, _ in lines), *legend])
        + "\n</svg>\n"
    )


def _lines(steps: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the drawing of each step, and where it ends."""
    for number, step in enumerate(steps):
        top, at = 12 + _LINE * number, float(_LEFT)
        boxes = [f'<text x="16" y="{top + 16}">step {number + 1}</text>']
        for item in step["items"]:
            if item["fate"] in _COLORS:
                box, at = _box(shown(item["text"]), item["fate"], at, top)
                boxes.append(box)
        yield "".join(boxes), at


def _box(text: str, fate: str, left: float, top: float) -> tuple[str, float]:
    """Return a box with a text, as wide in every font, and where it ends."""
    length = _LETTER * len(text)
    line = ' text-decoration="line-through"' if fate == "rejected" else ""
    drawn = (
        f'<rect x="{left:.1f}" y="{top}" width="{length + 8:.1f}" height="23" rx="3" fill="{_COLORS[fate]}"/>'
        f'<text x="{left + 4:.1f}" y="{top + 16}" textLength="{length:.1f}" xml:space="preserve"{line}>'
        f"{escape(text)}</text>"
    )
    return drawn, left + length + 11


if __name__ == "__main__":
    write(record())
