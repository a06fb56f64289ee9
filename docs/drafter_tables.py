"""Tables of what drafters gain: tokens per step (`benchmarks/which_drafter.py`) and speeds, as their files say."""

from __future__ import annotations

from typing import Any

from tables import data, speedup, table

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
    target = "[built-in target](../which-drafter.md#tokens-per-step)"
    return f"For the {target} with γ = {GAMMA}, it yields {tokens} (acceptance rates {rates}).\n"


def _tokens(row: dict[str, Any]) -> str:
    """Return the tokens per step of a run, with half of their confidence interval."""
    return f"{row['block_efficiency']:.2f} ±{row['half_interval']:.2f}"


def _counted() -> str:
    """Return how many texts the record has at each temperature."""
    assert data("replay")["record"] == data("drafters")["record"]
    greedy, sampled = data("replay")["texts"].values()
    return f"{greedy} texts at T = 0 and {sampled} at T = 1"


def _timed(run: str) -> list[str]:
    """Return c of a run in the study of speeds, and its tokens per step and speed-up at both temperatures.

    As in a verdict, a speed-up above what the tokens per target call allow is none.
    """
    found = [row for row in data("drafter_speeds")["rows"] if row["run"] in SPEEDS.get(run, [run])]
    cells = [f"{found[0]['c']:.3f}"] if found else []
    for row in found:
        sound = row["speedup"] <= MAX_EXCESS * row["speedup_bound"]
        cells += [f"{row['block_efficiency']:.2f}", f"{row['speedup']:.2f}×" if sound else "–"]
    return cells


def _links() -> dict[str, str]:
    """Return the link of each run to its drafter, that with the most tokens at temperature 0 first."""
    first = {run: rows[0.0, GAMMA] for run, rows in _runs().items()}
    links = {}
    for run in sorted(first, key=lambda run: -first[run]["block_efficiency"]):
        name = first[run]["drafter"]
        own = run.startswith(name)
        links[run] = f"[`{run if own else name}`](drafters/{name}.md)" + ("" if own else f", {run}")
    return links


def every_drafter() -> str:
    """Return the tokens per step of all drafters on the same texts."""
    rows = []
    for run, link in _links().items():
        greedy, sampled = (_runs()[run][temperature, GAMMA] for temperature in (0.0, 1.0))
        rows.append((link, _tokens(greedy), _tokens(sampled)))
    found = data("drafters")
    counted = f"γ = {GAMMA}; [replay](replay.md) of `{found['record']}`, {_counted()}; {found['date']}"
    half = "± is half a 95% confidence interval over prompts"
    return f"{table(('drafter', 'tokens per step, T = 0', 'T = 1'), rows)}\n{counted}. {half}.\n"


def speeds() -> str:
    """Return c, tokens per step and speed-ups of all drafters in the study that timed them."""
    rows = [(link, *_timed(run)) for run, link in _links().items() if _timed(run)]
    head = ("tokens per step, T = 0", "speed-up, T = 0", "tokens per step, T = 1", "speed-up, T = 1")
    found = data("drafter_speeds")
    settings = f"{found['settings'][0].upper()}{found['settings'][1:]}"
    return f"{table(('drafter', 'c', *head), rows)}\n{settings}; {found['machine']}, {found['date']}.\n"


METHODS = {"lookup": "prompt-copy", "assisted": "transformer"}
"""Drafters by the names that the benchmark against transformers has for them."""


def by_batch() -> str:
    """Return the speed-up of two drafters by batch size and temperature, for the smallest and largest target."""
    found = data("vs_transformers")
    sizes = list(dict.fromkeys(group["key"]["size"] for group in found["rows"]))
    rows = []
    for group in found["rows"]:
        key = group["key"]
        if key["size"] in (sizes[0], sizes[-1]):
            packed = {row["method"]: row for row in group["rows"] if row["configuration"] == "packed"}
            cells = [f"{_speedup(packed[method], packed['baseline']):.2f}×" for method in METHODS]
            counted = f"{group['prompts']} × {group['new_tokens']}"
            rows.append((key["size"], f"{key['temperature']:g}", str(key["batch_size"]), *cells, counted))
    head = ("target", "T", "batch size", *(f"`{name}`" for name in METHODS.values()), "prompts × tokens")
    settings = f"γ = {found['settings']['gamma']}, packed weights, {found['settings']['repeats']} rounds"
    machine = f"{found['machine']['threads']} threads of an {found['machine']['processor']} CPU, {found['date']}"
    return f"{table(head, rows)}\n{settings}; {machine}.\n"


def _speedup(row: dict[str, Any], plain: dict[str, Any]) -> float:
    speeds = (one["specdec_tokens_per_second"]["median"] for one in (row, plain))
    return speedup(*speeds, row["block_efficiency"]["specdec"], f"vs_transformers.json: {row['method']}")


def gains(name: str) -> str:
    """Return what a drafter gains; with `all` and `speeds` those of all, with `batch` the one of batch sizes."""
    return {"all": every_drafter, "speeds": speeds, "batch": by_batch}.get(name, lambda: of_drafter(name))()
