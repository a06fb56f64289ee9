"""Tables of what drafters gain: tokens per step (`benchmarks/which_drafter.py`) and speeds, as their files say."""

from __future__ import annotations

from typing import Any

from tables import data, table

from specdec_core.study.report.verdict import MAX_EXCESS

GAMMAS = (4, 8)
"""Gammas on the pages of drafters; the first is compared."""
SPEEDS = {
    "hierarchical(ngram)": ["transformer-on-trigram"],
    "chain(prompt-copy, transformer)": ["copy-else-transformer"],
    "parallel": ["parallel", "parallel-sharper"],
}
"""Runs that have other names in examples/drafters.yaml, which was timed."""

Runs = dict[str, dict[tuple[float, int], dict[str, Any]]]
"""Rows by run, and by temperature and gamma."""


def _runs(drafter: str = "") -> Runs:
    """Return the runs, of one drafter only if it is named."""
    runs: Runs = {}
    for row in data("drafters")["rows"]:
        if drafter in ("", row["drafter"]):
            runs.setdefault(row["run"], {})[row["temperature"], row["gamma"]] = row
    return runs


def _cells(rows: dict[tuple[float, int], dict[str, Any]], gamma: int) -> list[str]:
    """Return acceptance rate and tokens per step at both temperatures."""
    cells = []
    for temperature in (0.0, 1.0):
        row = rows[temperature, gamma]
        cells += [f"{row['acceptance_rate']:.2f}", f"{row['block_efficiency']:.2f} ±{row['half_interval']:.2f}"]
    return cells


HEAD = ("acceptance rate, T = 0", "tokens per step", "acceptance rate, T = 1", "tokens per step")


def of_drafter(name: str) -> str:
    """Return tokens per step, and in parentheses the acceptance rate, of a drafter with one run."""
    (found,) = _runs(name).values()
    rows = []
    for gamma in GAMMAS:
        greedy_rate, greedy, rate, sampled = _cells(found, gamma)
        rows.append((str(gamma), f"{greedy} ({greedy_rate})", f"{sampled} ({rate})"))
    texts = "[texts of the built-in target](../which-drafter.md#tokens-per-step)"
    return f"Tokens per step (acceptance rate) on {texts}:\n\n{table(('γ', 'T = 0', 'T = 1'), rows)}"


def _speeds(run: str) -> list[str]:
    """Return c of a run, and its speed-ups at both temperatures; nothing if it was not timed.

    As in a verdict, a speed-up above what the tokens per target call allow is none.
    """
    found = [row for row in data("drafter_speeds")["rows"] if row["run"] in SPEEDS.get(run, [run])]
    sound = (row["speedup"] <= MAX_EXCESS * row["speedup_bound"] for row in found)
    speedups = [f"{row['speedup']:.2f}×" if one else "–" for row, one in zip(found, sound, strict=True)]
    return [f"{found[0]['c']:.3f}", *speedups] if found else [""] * 3


def every_drafter() -> str:
    """Return tokens per step, c and measured speed-ups of all drafters, the most tokens at temperature 0 first."""
    gamma = GAMMAS[0]
    found = []
    for run, rows in _runs().items():
        name = rows[0.0, gamma]["drafter"]
        link = f"[`{run if run.startswith(name) else name}`](drafters/{name}.md)"
        link += "" if run.startswith(name) else f", {run}"
        order = rows[0.0, gamma]["block_efficiency"]
        found.append((order, (link, *_cells(rows, gamma)[1::2], *_speeds(run))))
    ranked = [cells for _, cells in sorted(found, reverse=True)]
    return table(("drafter", "tokens per step, T = 0", "T = 1", "c", "speed-up, T = 0", "T = 1"), ranked)


METHODS = {"lookup": "prompt-copy", "assisted": "transformer"}
"""Drafters by the names that the benchmark against transformers has for them."""


def by_batch() -> str:
    """Return the speed-up of two drafters by batch size and temperature, for the smallest and largest target."""
    speeds = {
        (row["method"], *(group["key"][one] for one in ("batch_size", "temperature", "size"))): row
        for group in data("vs_transformers")["rows"]
        for row in group["rows"]
        if row["configuration"] == "packed"
    }
    first, *_, last = dict.fromkeys(size for *_, size in speeds)
    rows = []
    for method, batch, temperature in sorted({key[:3] for key in speeds if key[0] in METHODS}):
        ratios = []
        for size in (first, last):
            drafted, plain = (
                speeds[one, batch, temperature, size]["specdec_tokens_per_second"]["median"]
                for one in (method, "baseline")
            )
            ratios.append(f"{drafted / plain:.2f}×")
        rows.append((f"`{METHODS[method]}`", str(batch), f"{temperature:g}", *ratios))
    return table(("drafter", "batch size", "T", f"{first} target", f"{last} target"), rows)


def gains(name: str) -> str:
    """Return the table of a drafter; with `all` the one of all drafters, with `batch` the one of batch sizes."""
    return {"all": every_drafter, "batch": by_batch}.get(name, lambda: of_drafter(name))()
