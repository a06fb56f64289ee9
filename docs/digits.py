"""The pictures and the acceptance by pixel of docs/images.md.

    python docs/digits.py                       decode anew and write docs/data/digits.json
    python docs/digits.py --draw FOLDER         draw what was recorded as SVG

The site draws the figures from the file when it is built (`docs/hooks.py`), and `docs/generate.py` writes the
tables into the page: building needs no model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdec_core.decoding import BatchResult

FOLDER = Path(__file__).parent
DATA = FOLDER / "data" / "digits.json"
STUDY = FOLDER.parent / "examples" / "images.yaml"
EACH = 60
"""Pictures of every class that each run draws at temperature 1."""
SHOWN = 6
"""Of those, how many the page shows."""
SIDE, LEVELS, CLASSES = 8, 17, 10
MIN_VERIFIED = 30
"""With fewer verified pixels, an acceptance rate is noise and its cell stays empty."""


@dataclass(frozen=True)
class Recording:
    """The pictures of a run at one temperature.

    Attributes:
        run: Name of the run in the study.
        temperature: Sampling temperature.
        pictures: Number of pictures.
        steps: Forward passes of the target, summed over pictures.
        accepted: By pixel, how many draft tokens were accepted there.
        verified: By pixel, how many draft tokens were compared with the target there.
        drawn: Token ids of the first pictures, class after class.
    """

    run: str
    temperature: float
    pictures: int
    steps: int
    accepted: tuple[int, ...]
    verified: tuple[int, ...]
    drawn: tuple[tuple[int, ...], ...]

    @property
    def alpha(self) -> float:
        """Accepted over verified draft tokens, of all pixels."""
        return sum(self.accepted) / sum(self.verified)

    @property
    def block_efficiency(self) -> float:
        """New tokens per forward pass of the target and picture."""
        return self.pictures * SIDE * SIDE / self.steps


def record(each: int = EACH, shown: int = SHOWN, runs: Sequence[str] = ()) -> list[Recording]:
    """Decode the study's runs: one picture of each class at temperature 0, `each` at temperature 1.

    Args:
        each: Pictures of a class at temperature 1, each with its own seed.
        shown: How many of them to keep as pictures.
        runs: Names of the runs; by default all except the baseline.
    """
    from specdec_core import SamplingSettings, default_registry, load_model
    from specdec_core.study import load_study
    from specdec_core.study.run.factory import make_decoder

    study = load_study(STUDY)
    target = load_model(study.tasks[0].target.model, device="cpu")
    prompts = [list(prompt.tokens or ()) for prompt in study.tasks[0].prompts]
    found = []
    for run in (one for one in study.runs[1:] if not runs or one.name in runs):
        for temperature, times in ((0.0, 1), (1.0, each)):
            decoder = make_decoder(
                target,
                run,
                registry=default_registry(),
                sampling=SamplingSettings(temperature=temperature),
                folder=study.folder,
                strict=True,
            )
            # A row of a batch does not depend on the others.
            results = [
                decoder.generate(prompts, study.tasks[0].generation, seeds=_seeds(number, len(prompts)))
                for number in range(times)
            ]
            found.append(_recording(run.name, temperature, results, shown))
    return found


def _seeds(number: int, count: int) -> list[int]:
    from specdec_core.decoding import row_seed

    return [row_seed(number, row) for row in range(count)]


def _recording(run: str, temperature: float, results: Sequence[BatchResult], shown: int) -> Recording:
    origins = [one.origins for result in results for one in result]
    # A bonus token follows a draft that was accepted in full, or no draft: nothing was verified there.
    accepted = tuple(sum(one == "accepted" for one in pixel) for pixel in zip(*origins, strict=True))
    verified = tuple(sum(one != "bonus" for one in pixel) for pixel in zip(*origins, strict=True))
    steps = sum(result.metrics.row_steps for result in results)
    drawn = tuple(one.tokens for result in results[:shown] for one in result)
    return Recording(run, temperature, len(origins), steps, accepted, verified, drawn)


def write(recordings: Sequence[Recording], path: Path = DATA) -> None:
    """Write recordings as JSON, one a line."""
    lines = ",\n".join(json.dumps(asdict(one)) for one in recordings)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def read(path: Path = DATA) -> list[Recording]:
    """Return the recordings of a file."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    keys = ("accepted", "verified")
    return [
        Recording(**{**one, **{key: tuple(one[key]) for key in keys}, "drawn": tuple(map(tuple, one["drawn"]))})
        for one in plain
    ]


@contextmanager
def _figure(path: Path, width: float, height: float) -> Iterator[Any]:
    import matplotlib as mpl
    import matplotlib.style
    from matplotlib.figure import Figure

    style = {"svg.hashsalt": "specdec", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 11}
    with mpl.style.context(["default", style]):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": "specdec"})


def draw_pictures(recordings: Sequence[Recording], path: Path) -> None:
    """Draw a grid of pictures as SVG: a column for each class, greedy in the first row, sampled below."""
    ours = {one.temperature: one for one in recordings if one.run == recordings[0].run}
    rows = [("greedy", ours[0.0].drawn)]
    rows += [("sampled", ours[1.0].drawn[at : at + CLASSES]) for at in range(0, len(ours[1.0].drawn), CLASSES)]
    cell = SIDE + 1  # one pixel between pictures
    white = (1.0, 1.0, 1.0)
    canvas = [[white] * (cell * CLASSES - 1) for _ in range(cell * len(rows) - 1)]
    for down, (_, drawn) in enumerate(rows):
        for right, tokens in enumerate(drawn):
            for at, token in enumerate(tokens):
                canvas[down * cell + at // SIDE][right * cell + at % SIDE] = _shade(token)
    with _figure(path, 9.6, 0.95 * len(rows) + 0.4) as figure:
        axes = figure.subplots()
        axes.imshow(canvas, interpolation="nearest")
        middles = [cell * number + (SIDE - 1) / 2 for number in range(max(CLASSES, len(rows)))]
        axes.set_xticks(middles[:CLASSES], [str(digit) for digit in range(CLASSES)])
        axes.set_yticks(middles[: len(rows)], [label for label, _ in rows])
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)


def _shade(token: int) -> tuple[float, float, float]:
    # The classes are tokens too, and a model may draw one: it is shown in red.
    return (token / (LEVELS - 1),) * 3 if token < LEVELS else (1.0, 0.0, 0.0)


def draw_acceptance(recordings: Sequence[Recording], path: Path) -> None:
    """Draw the acceptance rate at every pixel as SVG, a panel for each run at temperature 1."""
    sampled = [one for one in recordings if one.temperature == 1]
    with _figure(path, 9.6, 3.1) as figure:
        panels = figure.subplots(1, len(sampled))
        for axes, one in zip(panels, sampled, strict=True):
            grid = [rates(one)[at : at + SIDE] for at in range(0, SIDE * SIDE, SIDE)]
            axes.set_facecolor("lightgrey")  # seen where there is no rate
            image = axes.imshow(grid, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
            axes.set_title(f"{one.run}: {one.alpha:.2f}")
            axes.set_xticks([])
            axes.set_yticks([])
        figure.colorbar(image, ax=list(panels), label="acceptance rate", shrink=0.75)


def rates(one: Recording) -> list[float]:
    """Return the acceptance rate at every pixel; not a number where too few were verified."""
    return [
        accepted / verified if verified >= MIN_VERIFIED else float("nan")
        for accepted, verified in zip(one.accepted, one.verified, strict=True)
    ]


DRAWINGS: Mapping[str, Callable[[Sequence[Recording], Path], None]] = {
    "digits.svg": draw_pictures,
    "digits-acceptance.svg": draw_acceptance,
}
"""The function that draws each figure of the page, by file name."""


def table() -> str:
    """Return the table of the page: acceptance rate and block efficiency of each run."""
    lines = [
        "| drafter | acceptance rate, T = 0 | T = 1 | block efficiency, T = 0 | T = 1 |",
        "|---|--:|--:|--:|--:|",
    ]
    recordings = read()
    for run in dict.fromkeys(one.run for one in recordings):
        cold, warm = sorted((one for one in recordings if one.run == run), key=lambda one: one.temperature)
        numbers = (cold.alpha, warm.alpha, cold.block_efficiency, warm.block_efficiency)
        lines.append(f"| {run} | " + " | ".join(f"{number:.2f}" for number in numbers) + " |")
    return "\n".join(lines) + "\n"


PARTS = {"table": table}
"""Generated parts of the page."""


def main() -> None:
    """Record, or draw what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="draw what was recorded, and decode nothing")
    options = parser.parse_args()
    if options.draw:
        for name, draw in DRAWINGS.items():
            draw(read(), options.draw / name)
        return
    write(record())
    print(table())


if __name__ == "__main__":
    main()
