"""Tables of what drafters gain: tokens per step (`benchmarks/which_drafter.py`) and speeds, as their files say."""

from __future__ import annotations

from typing import Any

from tables import cores, data, speedup, table

from specdec_core.study.report.verdict import MAX_EXCESS

GAMMA = 4
"""Gamma of the tokens per step that pages compare."""
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


def of_drafter(name: str) -> str:
    """Return tokens per step and acceptance rate of a drafter with one run, in a sentence."""
    (found,) = _runs(name).values()
    both = [found[temperature, GAMMA] for temperature in (0.0, 1.0)]
    tokens = "{:.2f} tokens per step at T = 0, and {:.2f} at T = 1".format(
        *(row["block_efficiency"] for row in both)
    )
    rates = "{:.2f} and {:.2f}".format(*(row["acceptance_rate"] for row in both))
    record = data("drafters")["record"]
    source = f"acceptance rates {rates}; [all rows](../data/drafters.json)"
    return f"[Replayed](../replay.md) on `{record}` with γ = {GAMMA}, it yields {tokens} ({source}).\n"


def _link(run: str, name: str) -> str:
    """Return the link of a run to its drafter."""
    own = run.startswith(name)
    return f"[`{run if own else name}`](drafters/{name}.md)" + ("" if own else f", {run}")


def record() -> str:
    """Return which texts the tokens per step on the pages of drafters come from."""
    name, found = data("drafters")["record"], data("replay")
    assert found["record"] == name
    greedy, sampled = found["texts"].values()
    return (
        f"The pages of drafters show tokens per step of a [replay](replay.md) of `{name}`, {greedy} texts at "
        f"T = 0 and {sampled} at T = 1 ([intervals](data/drafters.json)).\n"
    )


def speeds() -> str:
    """Return c, tokens per step and speed-ups of all drafters in the study that timed them, the fastest first.

    As in a verdict, a speed-up above what the tokens per target call allow is none.
    """
    rows = []
    for run, replayed in _runs().items():
        timed = [row for row in data("drafter_speeds")["rows"] if row["run"] in SPEEDS.get(run, [run])]
        if timed:
            cells = [_link(run, replayed[0.0, GAMMA]["drafter"]), f"{timed[0]['c']:.3f}"]
            for row in timed:
                sound = row["speedup"] <= MAX_EXCESS * row["speedup_bound"]
                cells += [f"{row['block_efficiency']:.2f}", f"{row['speedup']:.2f}×" if sound else "–"]
            rows.append((timed[0]["speedup"], cells))
    rows.sort(key=lambda row: -row[0])
    head = ("tokens per step, T = 0", "speed-up, T = 0", "tokens per step, T = 1", "speed-up, T = 1")
    found = data("drafter_speeds")
    settings = f"{found['settings'][0].upper()}{found['settings'][1:]}"
    shown = table(("drafter", "c", *head), (cells for _, cells in rows))
    return f"{shown}\n{settings}; {cores(found['machine'])}, {found['date']}.\n"


METHODS = {"lookup": "prompt-copy", "assisted": "transformer"}
"""Drafters by the names that the benchmark against transformers has for them."""


def by_batch() -> str:
    """Return the speed-up of two drafters by batch size and temperature, for the largest target."""
    found = data("vs_transformers")
    largest = found["rows"][-1]["key"]["size"]
    rows = []
    for group in found["rows"]:
        key = group["key"]
        if key["size"] == largest:
            packed = {row["method"]: row for row in group["rows"] if row["configuration"] == "packed"}
            cells = [f"{_speedup(packed[method], packed['baseline']):.2f}×" for method in METHODS]
            counted = f"{group['prompts']} × {group['new_tokens']}"
            rows.append((f"{key['temperature']:g}", str(key["batch_size"]), *cells, counted))
    head = ("T", "batch size", *(f"`{name}`" for name in METHODS.values()), "prompts × tokens")
    settings = f"γ = {found['settings']['gamma']}, packed weights, {found['settings']['repeats']} rounds"
    machine = f"{found['machine']['threads']} threads of an {found['machine']['processor']} CPU, {found['date']}"
    return f"{table(head, rows)}\n{settings}; {machine}.\n"


def _speedup(row: dict[str, Any], plain: dict[str, Any]) -> float:
    speeds = (one["specdec_tokens_per_second"]["median"] for one in (row, plain))
    return speedup(*speeds, row["block_efficiency"]["specdec"], f"vs_transformers.json: {row['method']}")


def gains(name: str) -> str:
    """Return what a drafter gains; with `speeds` the table of all, with `batch` that of batch sizes."""
    return {"record": record, "speeds": speeds, "batch": by_batch}.get(name, lambda: of_drafter(name))()
