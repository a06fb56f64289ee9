"""The tables of docs/paper.md, what the built-in models measured beside what is printed, and Table 1 of theory.md.

    python docs/paper_tables.py results    keep the results of the studies

`python docs/generate.py` writes the tables into the page. The results are those of
`specdec compare examples/paper/NAME-builtin.yaml --output results/NAME`; docs/data/paper keeps the fields that the
page shows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import paper_numbers as paper
import tables

from specdec_core.theory.speed import operations_increase, walltime_improvement

FOLDER = Path(__file__).parent
DATA = FOLDER / "data" / "paper"
STUDIES = ("table2", "table3", "table4", "table5", "adaptive-gamma", "hierarchy")
KEPT = (
    *("task", "name", "drafter", "gamma", "lenience", "repeats", "tokens", "target_calls", "alpha", "c"),
    *("block_efficiency", "speedup", "speedup_min", "speedup_max", "speedup_expected", "speedup_expected_here"),
    *("deviation", "quality", "device", "versions"),
)
TASKS = {"ende": "EnDe", "summaries": "CNNDM", "code": "LM1B"}
"""Which task of the paper each of ours stands for, by the beginning of its name."""

Result = dict[str, Any]
Cell = str | float | int | None


def take(results: Path) -> None:
    """Keep what the page needs of the folders of results, with the date; other studies are left alone."""
    DATA.mkdir(parents=True, exist_ok=True)
    found = [study for study in STUDIES if (results / study).is_dir()]
    if not found:
        raise SystemExit(f"{results} has no results: none of {', '.join(STUDIES)} is a folder there.")
    for study in found:
        lines = (results / study / "results.jsonl").read_text(encoding="utf-8").splitlines()
        kept = [_slim(json.loads(line)) | {"date": str(date.today())} for line in lines]
        (DATA / f"{study}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept), encoding="utf-8")


def _slim(result: Result) -> Result:
    kept = {name: result[name] for name in KEPT}
    temperature = result["config"]["sampling"]["temperature"]
    kept["temperature"] = int(temperature) if temperature == int(temperature) else temperature
    kept["versions"].pop("specdec-core", None)  # the state of the working tree
    for name in ("signatures", "note"):
        (kept["quality"] or {}).pop(name, None)
    return kept


def read(study: str) -> list[Result]:
    """Return the kept results of a study, the baseline included."""
    return [json.loads(line) for line in (DATA / f"{study}.jsonl").read_text(encoding="utf-8").splitlines()]


def drafted(study: str) -> Iterator[Result]:
    """Yield the kept results of a study except the baseline's."""
    return (result for result in read(study) if result["drafter"] is not None)


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return rows as a Markdown table; numbers as they are rounded, None as a dash."""
    return tables.table(headings, ([_cell(cell) for cell in row] for row in rows))


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def _task(result: Result) -> str:
    return str(result["task"]).partition("-")[0]


def _speed(result: Result) -> str:
    half = (result["speedup_max"] - result["speedup_min"]) / 2
    return f"{result['speedup']:.2f}× ±{half:.2f}"


def table1() -> str:
    """Return operations and speed over plain decoding with c = c_hat = 0, as printed and by the formulas."""
    rows = (
        (
            *(str(row.alpha), row.gamma, row.operations, f"{operations_increase(row.alpha, row.gamma, 0):.4f}"),
            *(row.speed, f"{walltime_improvement(row.alpha, row.gamma, 0):.4f}"),
        )
        for row in (*paper.TABLE_1, paper.BIGRAM)
    )
    return table((r"$\alpha$", r"$\gamma$", "operations", "Theorem 3.11", "speed", "Theorem 3.8"), rows)


def table2() -> str:
    """Return walltimes by task, temperature, drafter and gamma, with the paper's row for T5-small."""
    found: dict[tuple[Cell, ...], dict[int, Result]] = {}
    for one in drafted("table2"):
        drafter = "bigram" if one["drafter"] == "ngram" else "small T5"
        found.setdefault((_task(one), one["temperature"], drafter), {})[one["gamma"]] = one
    rows = []
    for key, by_gamma in found.items():
        speeds = (_speed(by_gamma[gamma]) if gamma in by_gamma else None for gamma in (3, 5, 7))
        rows.append((*key, by_gamma[3]["alpha"], *speeds, *_paper_row(by_gamma[3])))
    ours = ("task", "T", "drafter", "alpha, γ = 3", "speed-up, γ = 3", "γ = 5", "γ = 7")
    return table((*ours, "paper: γ", "speed-up"), rows)


def _paper_row(result: Result) -> tuple[Cell, ...]:
    """Return the paper's gamma and speed-up at this task and temperature; table 3 has its alphas."""
    if result["drafter"] == "ngram":
        known = _task(result) == "ende" and result["temperature"] == 0
        return (paper.BIGRAM.gamma, f"{paper.BIGRAM.speed}×") if known else (None, None)
    task, temperature = TASKS[_task(result)], result["temperature"]
    (row,) = [r for r in paper.TABLE_4 if (r.task, r.drafter, r.temperature) == (task, "T5-small", temperature)]
    return row.gamma, f"{row.measured}×"


def table3() -> str:
    """Return alpha by task, drafter and temperature, ours beside the paper's."""
    found = {(_task(one), _kind(one), one["temperature"]): one["alpha"] for one in drafted("table3")}
    rows = []
    for task, drafter in dict.fromkeys(key[:2] for key in found):
        ours = [found[task, drafter, temperature] for temperature in (0, 1)]
        theirs = [_paper_alpha(task, drafter, temperature) for temperature in (0, 1)]
        rows.append((task, drafter, *ours, TASKS[task], *theirs))
    return table(("task", "drafter", "T=0", "T=1", "paper's task", "T=0", "T=1"), rows)


def _kind(result: Result) -> str:
    """Return which of the paper's drafters one of ours stands for."""
    name = str(result["name"])
    return next((kind for kind in ("unigram", "bigram") if name.endswith(kind)), "small model")


def _paper_alpha(task: str, drafter: str, temperature: int) -> float:
    small = {"LM1B": "GPT-like (6M)"}.get(TASKS[task], "T5-small")
    wanted = (TASKS[task], small if drafter == "small model" else drafter, temperature)
    (row,) = [row for row in paper.TABLE_3 if (row.task, row.drafter, row.temperature) == wanted]
    return row.alpha


def table4() -> str:
    """Return what Theorem 3.8 expects, what is expected here and what was measured, with the longest drafts."""
    longest: dict[tuple[Cell, ...], Result] = {}
    for one in drafted("table4"):
        key = (_task(one), one["temperature"], str(one["name"]).rstrip("0123456789"))
        longest[key] = max(longest.get(key, one), one, key=lambda result: result["gamma"])
    return table(
        ("task", "T", "run", "γ", "alpha", "c", "Theorem 3.8", "expected here", "measured"),
        (
            (
                *(_task(one), one["temperature"], one["name"], one["gamma"], one["alpha"], f"{one['c']:.3f}"),
                *(f"{one['speedup_expected']:.2f}×", f"{one['speedup_expected_here']:.2f}×", _speed(one)),
            )
            for one in longest.values()
        ),
    )


def table5() -> str:
    """Return what lenience does to acceptance, speed and text, and the paper's alpha."""
    found: dict[tuple[Cell, ...], dict[float, Result]] = {}
    for one in drafted("table5"):
        name = str(one["name"]).partition("-lenience=")[0]
        found.setdefault((one["temperature"], name), {})[float(one["lenience"])] = one
    rows: list[tuple[Cell, ...]] = []
    for (temperature, name), by_lenience in found.items():
        cells, theirs = [], []
        for lenience in paper.LENIENCES:
            one = by_lenience[lenience]
            cells.append(f"{one['alpha']:.2f}/{one['speedup']:.2f}×/{one['deviation']:.2f}")
            theirs.append(_paper_lenience(one, str(name), lenience))
        rows.append((temperature, name, *cells, "/".join(map(_cell, theirs)) if any(theirs) else None))
    return table(("T", "drafter", *(f"l = {lenience:g}" for lenience in paper.LENIENCES), "paper's alpha"), rows)


def _paper_lenience(result: Result, drafter: str, lenience: float) -> float | None:
    name = "T5-small" if drafter == "t5-drafter" else drafter
    known = (paper.GREEDY_LENIENCE,) if result["temperature"] == 0 else paper.TABLE_5
    alphas = [row.alphas for row in known if row.drafter == name]
    return alphas[0][paper.LENIENCES.index(lenience)] if alphas else None


def adaptive_gamma() -> str:
    """Return fixed and adaptive gammas by task, ours beside the slides'."""
    slides = {(row.task, row.gamma): row for row in (*paper.SLIDES_FIXED, *paper.SLIDES_ADAPTIVE)}
    rows: dict[str, list[Cell]] = {}
    for one in drafted("adaptive-gamma"):
        known = one["gamma"] if isinstance(one["gamma"], int) else None
        row = slides.get((TASKS[_task(one)], known)) if known or one["name"] == "running-average" else None
        cells = (one["alpha"], _speed(one), None if row is None else f"{row.speed}×")
        rows.setdefault(one["name"], []).extend(cells)
    tasks = dict.fromkeys(_task(one) for one in drafted("adaptive-gamma"))
    headings = (heading for task in tasks for heading in (f"{task}: alpha", "speed-up", "slides"))
    return table(("gamma", *headings), ((name, *cells) for name, cells in rows.items()))


def hierarchy() -> str:
    """Return a fast drafter, a better one and both together by temperature, ours beside the slides'."""
    rows: dict[str, list[Cell]] = {}
    for one in drafted("hierarchy"):
        rows.setdefault(one["name"], []).extend((one["alpha"], _speed(one)))
    temperatures = dict.fromkeys(one["temperature"] for one in drafted("hierarchy"))
    headings = (heading for t in temperatures for heading in (f"T = {t}: alpha", "speed-up"))
    theirs = dict(zip(("fast", "better", "hierarchy"), paper.SLIDES_HIERARCHY, strict=True))
    return table(
        ("drafter", *headings, "slides: drafter", "speed-up"),
        ((name, *cells, theirs[name].drafter, f"{theirs[name].speed}×") for name, cells in rows.items()),
    )


def machine() -> str:
    """Return where the numbers come from."""
    results = [one for study in STUDIES for one in read(study)]
    ((device, versions),) = {(one["device"], json.dumps(one["versions"])) for one in results}
    dates = " and ".join(sorted({one["date"] for one in results}))
    names = ", ".join(f"{name} {version}" for name, version in json.loads(versions).items())
    return f"Measured on {dates} on {device}, with {names}.\n"


TABLES: dict[str, Callable[[], str]] = {
    "machine": machine,
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "adaptive-gamma": adaptive_gamma,
    "hierarchy": hierarchy,
}


def main() -> None:
    """Keep results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="DIR", help="folder with the folders of results")
    take(parser.parse_args().results)


if __name__ == "__main__":
    main()
