"""Tables of docs/benchmarks.md, from what three benchmarks write, and tables of pages that were recorded once.

python benchmarks/vs_engines.py --out docs/data/vs_engines.json
python benchmarks/vs_transformers.py --out docs/data/vs_transformers.json
benchmarks/gpu/run speed --out docs/data/gpu    # likewise correctness and choose
python docs/generate.py

docs/data/recorded.json has all other measurements: for each the command, machine, date and rows, and the columns
that a page shows, if one does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from tables import table

DATA = Path(__file__).parent / "data"


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


_METHODS = {
    "baseline": ("plain decoding", ""),
    "lookup": ("copying from the prompt", "prompt-copy"),
    "assisted": ("a small draft model", "transformer"),
}
"""The words for each method that is compared, and the page of its drafter."""


def _counted_on(size: str) -> str:
    """Return how many prompts and new tokens single sequences were measured on, in a sentence."""
    settings = _data("vs_transformers")["settings"]
    groups = [group for group in _data("vs_transformers")["rows"] if group["key"]["size"] == size]
    counts = [
        f"{group['prompts']} prompt{'s' * (group['prompts'] > 1)} × {group['new_tokens']} tokens at T = "
        f"{group['key']['temperature']:g}"
        for group in groups
        if group["key"]["batch_size"] == 1
    ]
    return f"{', '.join(counts)}, {settings['repeats']} rounds."


def against() -> str:
    """Return the speeds of all methods of both libraries for single sequences, each over its own plain decoding.

    Of the targets, the largest; the first page has another, and the drawing all.
    """
    settings = _data("vs_transformers")["settings"]
    *_, last = (group["key"]["size"] for group in _data("vs_transformers")["rows"])
    head = ("T", f"{last} target", "transformers", *(f"specdec, {words}" for words in _CONFIGURATIONS.values()))
    rows = [
        (temperature, _METHODS[method][0], *cells)
        for size, temperature, method, cells in _speeds()
        if size == last
    ]
    text = f"{_measured('vs_transformers')} Gamma {settings['gamma']}, medians; {_counted_on(last)}\n\n"
    return f"{text}{table(head, rows)}\n{_slower()}"


_CONFIGURATIONS = {"plain": "unpacked", "packed": "packed"}
"""The words for the configurations of specdec in the table."""


def _speeds() -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield size, temperature, method and speeds of each measured method for single sequences.

    The speeds are those of transformers, and of each configuration of specdec.
    """
    for group in _data("vs_transformers")["rows"]:
        key = group["key"]
        if key["batch_size"] == 1:
            found = {(row["configuration"], row["method"]): row for row in group["rows"]}
            for method in sorted({method for _, method in found}, key=list(_METHODS).index):
                cells = [_over_plain(found, "plain", method, "transformers")]
                cells += [_over_plain(found, name, method, "specdec") for name in _CONFIGURATIONS]
                yield key["size"], f"{key['temperature']:g}", method, cells


def _over_plain(rows: dict[tuple[str, str], dict[str, Any]], configuration: str, method: str, library: str) -> str:
    """Return tokens per second, and their quotient by those of the same library's plain decoding."""
    speed, plain = (
        rows[configuration, one][f"{library}_tokens_per_second"]["median"] for one in (method, "baseline")
    )
    return f"{speed:.0f}" if method == "baseline" else f"{speed:.0f} ({speed / plain:.1f}×)"


def _slower() -> str:
    """Return in how many comparisons specdec is the slower library, and which these are."""
    rows = list(_against())
    slower = [row for row in rows if row["ratio"]["median"] < 1]
    groups: dict[str, list[str]] = {}
    for row in slower:
        name = f"{_METHODS[row['method']][0]} at T = {row['temperature']:g} and batch size {row['batch_size']}"
        compiled = " compiled" if "compiled" in row["configuration"] else ""
        groups.setdefault(name, []).append(f"{row['size']}{compiled} {row['ratio']['median']:.3f}")
    unpacked = all("packed" not in row["configuration"] for row in slower)
    return (
        f"In {len(slower)} of {len(rows)} comparisons specdec is the slower library"
        f"{', always without packing' if unpacked else ''} (its speed over that of transformers):\n\n"
        + "".join(f"- {name}: {', '.join(found)}\n" for name, found in groups.items())
    )


def front(folder: str = "") -> str:
    """Return the speeds of both libraries with the target of the quickstart: all methods that were measured.

    Each is compared with the plain decoding of the same library and configuration.

    Args:
        folder: Path of the pages, relative to the one that shows the table.
    """
    head = ("tokens/s", "T", "transformers", *(f"specdec, {words}" for words in _CONFIGURATIONS.values()))
    rows = []
    for size, temperature, method, cells in _speeds():
        if size == "60M":
            words, drafter = _METHODS[method]
            link = f", [`{drafter}`]({folder}drafters/{drafter}.md)" if drafter else ""
            rows.append((f"{words}{link}", temperature, *cells))
    return f"{table(head, rows)}\n{_measured('vs_transformers')} Medians; {_counted_on('60M')}\n"


# --- against other engines -------------------------------------------------------------------------------------


_ENGINES = {
    "specdec": "specdec",
    "openvino": "OpenVINO GenAI",
    "onnxruntime": "ONNX Runtime GenAI",
    "llama_cpp": "llama.cpp",
    "transformers": "transformers",
    "vllm": "vLLM",
}
_WAYS = {"plain": "plain", "draft": "a draft model", "lookup": "copying", "chain": "chain"}


def engines() -> str:
    """Return the speed of each engine by method, the fastest in bold, and how many texts are as in float32."""
    if not (DATA / "vs_engines.json").exists():
        return "The comparison has not been measured on a quiet machine yet.\n"
    data = _data("vs_engines")
    settings, versions = data["settings"], {}
    head = ("target, weights", "engine", *_WAYS.values(), "equal texts")
    tables: dict[str, list[tuple[str, ...]]] = {}
    for group in data["rows"]:
        key = group["key"]
        versions |= group["versions"]
        title = f"T = {key['temperature']:g}, {key['batch_size']} at a time"
        tables.setdefault(title, []).extend(_rows_of_engines(group))
    counted = f"{settings['prompts']} prompts × {settings['tokens']} tokens, {settings['rounds']} rounds"
    tried = " or ".join(map(str, settings["gammas"])) + " drafted tokens, n-grams of "
    tried += " or ".join(map(str, settings["ngrams"]))
    found = [f"{name} {version}" for name, version in sorted(versions.items())]
    texts = [f"Medians of tokens per second, {data['date']}; {counted}; {tried}; {', '.join(found)}.\n"]
    texts += [f"{title}:\n\n{table(head, rows)}" for title, rows in tables.items()]
    return "\n".join(texts)


def _rows_of_engines(group: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each engine and way to run it."""
    cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in group["rows"]:
        cells.setdefault((row["engine"], row["precision"]), {})[row["method"]] = row
    best = {
        method: max(
            (row[method]["tokens_per_second"]["median"] for row in cells.values() if method in row), default=0
        )
        for method in _WAYS
    }
    for (engine, precision), row in cells.items():
        width, _, variant = precision.partition("-")
        speeds = []
        for method in _WAYS:
            speed = row[method]["tokens_per_second"]["median"] if method in row else None
            text = "–" if speed is None else f"{speed:.0f}"
            speeds.append(f"**{text}**" if speed == best[method] else text)
        equal = sorted({(cell["equal_texts"] or "–").partition(" of ")[0] for cell in row.values()})
        equal = list(dict.fromkeys([equal[0], equal[-1]]))
        of = next(iter(row.values()))["equal_texts"].partition(" of ")[2]
        name = _ENGINES[engine] + (f", {variant}" if variant else "")
        yield f"{group['key']['models']}, {width}", name, *speeds, f"{' to '.join(equal)} of {of}"


# --- recorded once ---------------------------------------------------------------------------------------------


def recorded(name: str) -> str:
    """Return a table of docs/data/recorded.json with its settings, machine and date."""
    found = _data("recorded")[name]
    columns = found["columns"]
    ranges = re.compile(r" \([\d.]+ to [\d.]+\)" if found.get("medians_only") else r"(?!)")
    what = f"{found['settings'][0].upper()}{found['settings'][1:]} ({found['machine']}, {found['date']}):\n\n"
    return what + table(columns, [[ranges.sub("", row[column]) for column in columns] for row in found["rows"]])


# --- in vLLM ---------------------------------------------------------------------------------------------------


def vllm() -> str:
    """Return what vLLM did with each drafter, and what was expected."""
    data = _data("vllm_forecast")
    head = (
        "drafter",
        "expected: drafts / drafted / accepted",
        "vLLM's counters",
        "expected by position",
        "in vLLM",
    )
    rows = []
    for row in data["rows"]:
        name, pairs = row["key"]["drafter"], [_counted(row["forecast"]), _counted(row["vllm"])]
        shown = name if row["forecast"] is None else f"[`{name}`](drafters/{name}.md)"
        rows.append((shown, *(one[0] for one in pairs), *(one[1] for one in pairs)))
    settings = data["settings"]
    return (
        f"{table(head, rows)}\n{settings['prompts']} prompts × {settings['tokens']} tokens, greedy, γ = "
        f"{settings['gamma']}, float32, vLLM {settings['vllm']} on a CPU, {data['date']}.\n"
    )


def _counted(found: dict[str, Any] | None) -> tuple[str, str]:
    """Return the counts and the rates by position."""
    if found is None:
        return "–", "–"
    rates = " ".join(f"{accepted / found['drafts']:.2f}" for accepted in found["accepted"])
    return f"{found['drafts']} / {found['draft_tokens']} / {sum(found['accepted'])}", rates


# --- on a GPU --------------------------------------------------------------------------------------------------


def gpu() -> str:
    """Return on which GPU specdec has run, or that it has run on none."""
    for found in _on_gpus():
        gpu_name, date = found["machine"]["gpu"], found["date"]
        return f"specdec was run on {gpu_name} on {date}: [results](benchmarks.md#on-a-gpu).\n"
    return "**specdec has not run on a GPU yet.** What the pages say about GPUs is design, not measurement.\n"


def accelerator() -> str:
    """Return everything that was measured on a GPU, or that nothing was."""
    return "\n".join(found["table"] for found in _on_gpus()) or gpu()


def _on_gpus() -> list[dict[str, Any]]:
    """Return what the commands of `benchmarks/gpu/run` wrote."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((DATA / "gpu").glob("*.json"))]


TABLES = {
    "front": front,
    "readme": lambda: front("docs/"),
    "gpu": gpu,
    "vllm": vllm,
    "engines": engines,
    "against": against,
    "accelerator": accelerator,
    **{name: partial(recorded, name) for name, found in _data("recorded").items() if "columns" in found},
}
