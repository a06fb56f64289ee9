"""Tables of docs/benchmarks.md, from what two benchmarks write.

python benchmarks/vs_transformers.py --out docs/data/vs_transformers.json
python benchmarks/accelerator.py --out docs/data/accelerator.json
python docs/generate.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from markdown_table import table

DATA = Path(__file__).parent / "data"
GAP = ("floor", "target", "draft", "rest", "first_step")


@cache
def _data(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return data


def _range(found: dict[str, float], digits: int = 2) -> str:
    median, least, most = (f"{found[name]:.{digits}f}" for name in ("median", "min", "max"))
    return f"{median} ({least} to {most})"


def _measured(name: str) -> str:
    """Return where and when results were measured, in a sentence."""
    data = _data(name)
    machine = data["machine"]
    threads = machine["threads"]
    where = machine["gpu"] or f"{machine['processor']}, {threads} thread{'s' * (threads > 1)}"
    versions = f"torch {machine['torch'].partition('+')[0]}, transformers {machine['transformers']}"
    return f"Measured on {data['date']}: {where}, {versions}."


# --- against transformers --------------------------------------------------------------------------------------


def _against() -> Iterator[dict[str, Any]]:
    """Yield each row with its key."""
    for group in _data("vs_transformers")["rows"]:
        for row in group["rows"]:
            yield {**group["key"], **row}


def against() -> str:
    """Return the median and smallest ratio of each method and configuration, and the rows below 1."""
    found = _data("vs_transformers")
    rows = []
    for method in ("assisted", "baseline", "lookup"):
        summary = found["summary"][method]
        for name, part in {"all": summary, **summary["by_configuration"]}.items():
            rows.append((method, name, str(part["rows"]), f"{part['median']:.2f}", f"{part['min']:.2f}"))
    settings = found["settings"]
    text = f"{_measured('vs_transformers')} Gamma {settings['gamma']}, {settings['repeats']} rounds.\n\n"
    text += table(("method", "specdec", "rows", "median ratio", "smallest"), rows)
    slower = [
        f"{row['method']} {row['size']}, batch {row['batch_size']}, temperature {row['temperature']:g}, "
        f"{row['configuration']}: {_range(row['ratio'])}"
        for row in found["summary"]["below_1"]
    ]
    return text + (
        "\nBelow 1:\n\n" + "".join(f"- {one}\n" for one in slower) if slower else "\nNo row is below 1.\n"
    )


_METHODS = {
    "baseline": ("plain decoding", ""),
    "lookup": ("copying from the prompt", "prompt-copy"),
    "assisted": ("a small draft model", "transformer"),
}
"""The words for each method that is compared, and the page of its drafter."""


def front(folder: str = "") -> str:
    """Return the speeds of both libraries with the built-in pair at temperature 0: all methods that were measured.

    Each library is compared with its own plain decoding.

    Args:
        folder: Path of the pages, relative to the one that shows the table.
    """
    rows = {
        row["method"]: row
        for row in _against()
        if (row["size"], row["temperature"], row["batch_size"], row["configuration"]) == ("10M", 0, 1, "packed")
    }
    count = _data("vs_transformers")["machine"]["threads"]
    threads = {1: "one CPU core", 2: "two CPU cores"}.get(count, f"{count} CPU cores")
    over = "over its plain decoding"
    head = f"| greedy, tokens/s on {threads} | specdec | {over} | transformers | {over} |"
    lines = [head, "|---|--:|--:|--:|--:|"]
    for method in sorted(rows, key=list(_METHODS).index):
        words, drafter = _METHODS[method]
        cells = [f"{words}, [`{drafter}`]({folder}drafters/{drafter}.md)" if drafter else words]
        for library in ("specdec", "transformers"):
            speed, plain = (rows[one][f"{library}_tokens_per_second"]["median"] for one in (method, "baseline"))
            cells += [f"{speed:.0f}", f"{speed / plain:.1f}×"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ratios() -> str:
    """Return the ratio of every row."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for row in _against():
        key = row["method"], row["size"], str(row["batch_size"]), f"{row['temperature']:g}"
        rows.setdefault(key, {})[row["configuration"]] = _range(row["ratio"])
    names = _data("vs_transformers")["settings"]["configurations"]
    order = sorted(rows, key=lambda key: key[0])
    head = ("method", "target", "batch", "temperature", *names)
    return table(head, [(*key, *(rows[key].get(name, "") for name in names)) for key in order])


def gaps() -> str:
    """Return what lies between the floor and the measurement, with a draft model."""
    head = (
        "target",
        "batch",
        "temperature",
        "specdec",
        "α",
        "c",
        "Theorem 3.8",
        "floor, tokens/s",
        "measured, tokens/s",
    )
    rows = []
    for row in _against():
        if row["method"] != "assisted":
            continue
        theory, gap = row["theory"], row["gap_ms_per_token"]
        key = (row["size"], str(row["batch_size"]), f"{row['temperature']:g}", row["configuration"])
        numbers = (f"{theory['alpha']:.2f}", f"{theory['c']:.3f}", f"{theory['improvement']:.2f}×")
        rates = (row["floor_tokens_per_second"], row["specdec_tokens_per_second"]["median"])
        most = max((part for part in GAP if part != "floor"), key=gap.__getitem__)
        share = gap[most] / (gap["measured"] - gap["floor"])
        parts = [f"{gap[part]:.2f}" for part in (*GAP, "measured")]
        largest = f"{most.replace('_', ' ')}, {share:.0%}"
        rows.append((*key, *numbers, *(f"{rate:.0f}" for rate in rates), *parts, largest))
    names = [part.replace("_", " ") for part in GAP]
    return table((*head, *names, "sum, ms", "most of the gap"), rows)


# --- on a GPU --------------------------------------------------------------------------------------------------


def gpu() -> str:
    """Return on which GPU specdec has run, or that it has run on none."""
    if not (DATA / "accelerator.json").exists():
        return "**specdec has not run on a GPU yet.** What the pages say about GPUs is design, not measurement.\n"
    found = _data("accelerator")
    return f"specdec was run on {found['machine']['gpu']} on {found['date']}: [results](benchmarks.md#on-a-gpu).\n"


def accelerator() -> str:
    """Return everything that was measured on a GPU, or that nothing was."""
    if not (DATA / "accelerator.json").exists():
        return gpu()
    rows = [row for row in _data("accelerator")["rows"] if not {"failed", "left_out"} & row.keys()]
    parts = {
        name: [row for row in rows if row["key"]["part"] == name]
        for name in ("tests", "framework", "verify", "pairs")
    }
    texts = [_measured("accelerator") + "\n", *(_PARTS[name](found) for name, found in parts.items() if found)]
    missing = _data("accelerator")["missing"]
    if missing:
        texts.append("Not measured:\n\n" + "".join(f"- {name}: {reason}\n" for name, reason in missing.items()))
    return "\n".join(texts)


def _tests(rows: list[dict[str, Any]]) -> str:
    device = _data("accelerator")["settings"]["device"]
    return "".join(
        f"- Tests with `--device {device}`, {row['key']['mode']}: "
        f"{', '.join(f'{count} {name}' for name, count in row['counts'].items())}\n"
        for row in rows
    )


def _framework(rows: list[dict[str, Any]]) -> str:
    head = ("models", "batch", "temperature", "step, ms", "drafter", "target and acceptance", "rest")
    names = ("step_ms", "draft_ms", "verify_ms", "rest_ms")
    return table(
        head,
        [
            (
                row["key"]["mode"],
                str(row["key"]["batch_size"]),
                f"{row['key']['temperature']:g}",
                *(_range(row[one]) for one in names),
            )
            for row in rows
        ],
    )


def _verify(rows: list[dict[str, Any]]) -> str:
    longest = max(len(row["relative"]) for row in rows) - 1
    shown = [k for k in (1, 2, 4, 8, 16) if k <= longest]
    head = ("target", "models", "floor, ms", "forecast, ms", "T(0), ms", *(f"T({k}) / T(0)" for k in shown))
    return table(
        head,
        [
            (
                row["key"]["target"],
                row["key"]["mode"],
                f"{row['floor_ms']:.2f}",
                "" if row["forecast_ms"] is None else f"{row['forecast_ms'][0]:.2f}",
                f"{row['verify_ms'][0]:.2f}",
                *(f"{row['relative'][k]:.2f}" for k in shown),
            )
            for row in rows
        ],
    )


def _pairs(rows: list[dict[str, Any]]) -> str:
    head = ("target", "batch", "temperature", "models", "drafter", "α", "c", "Theorem 3.8", "tokens/s")
    return table(
        (*head, f"over {_data('accelerator')['settings']['modes'][-1]} baseline", "over transformers"),
        [
            (
                row["key"]["target"],
                str(row["key"]["batch_size"]),
                f"{row['key']['temperature']:g}",
                one["mode"],
                one["drafter"],
                f"{one['theory']['alpha']:.2f}",
                f"{one['theory']['c']:.3f}",
                f"{one['theory']['improvement']:.2f}×",
                f"{one['specdec_tokens_per_second']['median']:.1f}",
                _range(one["over_baseline"]),
                f"{_range(one['ratio'])}, {'plain' if one['against'] == 'baseline' else 'assisted'}",
            )
            for row in rows
            for one in row["rows"]
        ],
    )


_PARTS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "tests": _tests,
    "framework": _framework,
    "verify": _verify,
    "pairs": _pairs,
}
TABLES = {
    "front": front,
    "readme": lambda: front("docs/"),
    "gpu": gpu,
    "against": against,
    "ratios": ratios,
    "gaps": gaps,
    "accelerator": accelerator,
}
