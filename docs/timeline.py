"""Figure 5 of the paper from real runs: every forward pass of encoder, drafter and target, as long as it took.

    python docs/timeline.py           decode anew and write docs/data/timeline.json
    python docs/timeline.py --draw figure-5.svg

The site draws the figure from the file when it is built (`docs/hooks.py`), so building needs no model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_core.decoding.decoder import Decoder

DATA = Path(__file__).parent / "data" / "timeline.json"
TARGET, DRAFTER = "builtin:t5-target", "builtin:t5-drafter"
PROMPT = (
    "translate English to German: There was an error getting the sensor IDs from sensor names. "
    "Try reloading the ecobee integration."
)
GAMMAS = (7, 3, 0)
ROUNDS = 60

# The colors of the paper's figure: the target purple, the drafter blue, the encoder yellow.
_LOOKS = {
    "target": ("#7E57C2", "target"),
    "drafter": ("#42A5F5", "drafter"),
    "encoder": ("#FDD835", "encoder of both"),
}


@dataclass(frozen=True)
class Call:
    """A call of a model.

    Attributes:
        who: A key of `_LOOKS`.
        begin: Seconds from the beginning of the decoding.
        seconds: How long it took.
    """

    who: str
    begin: float
    seconds: float


@dataclass(frozen=True)
class Row:
    """One decoding.

    Attributes:
        gamma: Tokens drafted in a step; 0 is the autoregressive baseline.
        tokens: New tokens.
        steps: Target forward passes.
        seconds: Wall time, from the prompt to the last token.
        text: The generated text.
        calls: Every call of a model, in the order in which they began.
    """

    gamma: int
    tokens: int
    steps: int
    seconds: float
    text: str
    calls: tuple[Call, ...]


class Clock:
    """Records calls of modules with PyTorch's forward hooks."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.zero = 0.0

    def start(self) -> None:
        """Discard the recorded calls and start at 0."""
        self.calls.clear()
        self.zero = perf_counter()

    @contextmanager
    def watching(self, modules: dict[str, Any]) -> Iterator[None]:
        """Record calls of modules by name, on a CPU, where a call returns when its work is done."""
        handles = []
        for who, module in modules.items():
            began: list[float] = []

            def before(*_: Any, began: list[float] = began) -> None:
                began.append(perf_counter())

            def after(*_: Any, who: str = who, began: list[float] = began) -> None:
                begin = began.pop()
                self.calls.append(Call(who, begin - self.zero, perf_counter() - begin))

            handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def record(prompt: str = PROMPT, gammas: Sequence[int] = GAMMAS, rounds: int = ROUNDS) -> list[Row]:
    """Decode a prompt greedily with each gamma in turns, and return the fastest round of each.

    Other load on a machine only makes a round slower, so the fastest shows the decoding best.

    Args:
        prompt: The prompt.
        gammas: The numbers of draft tokens; 0 is the autoregressive baseline.
        rounds: Number of timed rounds, after one for warm-up.
    """
    from specdec_core import SamplingSettings, default_registry, load_model
    from specdec_core.decoding.decoder import Decoder
    from specdec_core.study import run_model

    registry = default_registry()
    target = load_model(TARGET)
    config = run_model(registry).model_validate({"drafter": {"name": "transformer", "model": DRAFTER}, "gamma": 1})
    drafter: Any = registry.create("drafter", "transformer", config.drafter, target.info())

    def decoder(gamma: int) -> Decoder:
        fixed = run_model(registry).model_validate({"drafter": "random", "gamma": gamma}).gamma
        guess = {"drafter": drafter, "gamma": registry.create("gamma", "fixed", fixed)} if gamma else {}
        return Decoder(target, **guess, sampling=SamplingSettings(temperature=0), strict=True)

    decoders = {gamma: decoder(gamma) for gamma in gammas}
    modules = {"target": target.model, "drafter": drafter.loaded.model, "encoder": target.model.get_encoder()}
    clock = Clock()
    rows: dict[int, list[Row]] = {gamma: [] for gamma in gammas}
    with clock.watching(modules):
        for _ in range(rounds + 1):
            for gamma, one in decoders.items():
                rows[gamma].append(_decode(one, clock, gamma, prompt))
    return [min(of_gamma[1:], key=lambda row: row.seconds) for of_gamma in rows.values()]


def _decode(decoder: Decoder, clock: Clock, gamma: int, prompt: str) -> Row:
    clock.start()
    result = decoder.generate([prompt])
    seconds = perf_counter() - clock.zero
    calls = tuple(sorted(clock.calls, key=lambda call: call.begin))
    return Row(
        gamma, result.metrics.tokens, result.metrics.target_calls, seconds, result.sequences[0].text or "", calls
    )


def write(rows: Sequence[Row], path: Path = DATA) -> None:
    """Write rows as JSON, times to a microsecond."""
    plain = json.loads(json.dumps([asdict(row) for row in rows]), parse_float=lambda text: round(float(text), 6))
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in plain)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def read(path: Path = DATA) -> list[Row]:
    """Return the rows of a file."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    return [Row(**{**row, "calls": tuple(Call(**call) for call in row["calls"])}) for row in plain]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the decodings below one another on one time axis, as SVG."""
    import matplotlib as mpl
    import matplotlib.style
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    style = {"svg.hashsalt": "specdec", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 11}
    with mpl.style.context(["default", style]):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.subplots()
        for level, row in enumerate(rows):
            for call in row.calls:
                span = (1000 * call.begin, 1000 * call.seconds)
                color = _LOOKS[call.who][0]
                axes.broken_barh([span], (level - 0.3, 0.6), facecolor=color, edgecolor="black", linewidth=0.4)
        axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1000 * max(row.seconds for row in rows))
        axes.set_xlabel("milliseconds")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        handles = [Patch(facecolor=color, edgecolor="black", label=label) for color, label in _LOOKS.values()]
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": "specdec"})


def _label(row: Row) -> str:
    calls = f"{row.steps} calls, {1000 * row.seconds:.0f} ms"
    return f"γ = {row.gamma}\n{calls}" if row.gamma else f"plain decoding\n{calls}"


def main() -> None:
    """Record, or draw the recorded runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=Path, help="draw the recorded runs into this SVG, and decode nothing")
    options = parser.parse_args()
    if options.draw:
        draw(read(), options.draw)
        return
    rows = record()
    write(rows)
    for row in rows:
        print(f"{_label(row)!r}: {row.tokens} tokens: {row.text}")


if __name__ == "__main__":
    main()
