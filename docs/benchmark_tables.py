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
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from tables import cores, speedup, table

DATA = Path(__file__).parent / "data"


def _data(name: str) -> dict[str, Any]:
    return _read(DATA / f"{name}.json")


@cache
def _read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def _measured(name: str) -> str:
    """Return where and when results were measured, in a sentence."""
    data = _data(name)
    machine = data["machine"]
    threads = machine["threads"]
    where = machine["gpu"] or f"{machine['processor']}, {threads} thread{'s' * (threads > 1)}"
    versions = f"torch {machine['torch'].partition('+')[0]}, transformers {machine['transformers']}"
    return f"Measured on {data['date']}: {where}, {versions}."


# --- against transformers --------------------------------------------------------------------------------------


_METHODS = {
    "baseline": "plain decoding",
    "lookup": "copying from the prompt",
    "assisted": "a small draft model",
}
"""The words for each method that is compared."""


def against() -> str:
    """Return what was compared, in how many comparisons specdec is the slower library, and where it is slowest."""
    data = _data("vs_transformers")
    rows = [{**group["key"], **row} for group in data["rows"] for row in group["rows"]]
    slower = [row for row in rows if row["ratio"]["median"] < 1]
    worst = min(rows, key=lambda row: row["ratio"]["median"])
    unpacked = all("packed" not in row["configuration"] for row in slower)
    prompts, tokens = (_between(group[name] for group in data["rows"]) for name in ("prompts", "new_tokens"))
    return (
        f"In {len(slower)} of {len(rows)} comparisons specdec is the slower library"
        f"{', always with unpacked weights' if unpacked else ''}. The worst is {_METHODS[worst['method']]} "
        f"at T = {worst['temperature']:g} with batch size {worst['batch_size']} and the {worst['size']} target, "
        f"where specdec reaches {worst['ratio']['median']:.2f} times the speed of transformers.\n\n"
        f"{prompts} prompts × {tokens} tokens, fewer for larger targets; γ = {data['settings']['gamma']}, medians "
        f"of {data['settings']['repeats']} rounds. {_measured('vs_transformers')}\n"
    )


def _between(numbers: Iterable[int]) -> str:
    """Return the least and the greatest number."""
    found = sorted(set(numbers))
    return f"{found[0]} to {found[-1]}"


# --- against other engines -------------------------------------------------------------------------------------


_ENGINES = {
    "specdec": "specdec",
    "openvino": "OpenVINO GenAI",
    "onnxruntime": "ONNX Runtime GenAI",
    "llama_cpp": "llama.cpp",
    "transformers": "transformers",
    "vllm": "vLLM",
}
_WIDTHS = {"float32": "float32", "int8": "8 bits"}
_PAGES = ("transformer", "prompt-copy")
_COLUMNS = ("plain", "draft", "lookup")
_HEAD = ("plain", "draft model", "copying", "best")

Methods = dict[str, tuple[float, str]]
"""Tokens per second of each way to decode, and the same as text, with the speed-up in parentheses."""


def front(folder: str = "") -> str:
    """Return the speed of each engine, in the configuration in which it is fastest, for the largest target.

    Sequences are decoded greedily, one at a time. A table for each width of the weights.

    Args:
        folder: Path of the pages, relative to the one that shows the tables.
    """
    groups = [
        group
        for group in _data("vs_engines")["rows"]
        if group["key"]["batch_size"] == 1 and group["key"]["temperature"] == 0
    ]
    largest = max((group["key"]["models"] for group in groups), key=_parameters)
    links = (f"[{words}]({folder}drafters/{page}.md)" for words, page in zip(_HEAD[1:3], _PAGES, strict=True))
    head = ("engine", _HEAD[0], *links, _HEAD[3])
    tables = []
    for group in groups:
        if group["key"]["models"] == largest:
            fastest: dict[str, tuple[tuple[str, str], Methods]] = {}
            for (engine, precision), methods in _configurations(group).items():
                if engine not in fastest or max(methods.values()) > max(fastest[engine][1].values()):
                    fastest[engine] = (engine, precision), methods
            tables.append(
                f"{_WIDTHS[group['key']['precision']]}:\n\n{table(head, _compared(dict(fastest.values())))}"
            )
    return "\n".join([*tables, f"The built-in target, inflated to {largest} parameters; greedy, {_decoded(1)}.\n"])


def engines() -> str:
    """Return the speed of each engine in all configurations, a table for each target and way to decode it."""
    kinds: dict[str, list[str]] = {}
    versions: dict[str, str] = {}
    for group in _data("vs_engines")["rows"]:
        versions |= group["versions"]
        temperature, batch_size = group["key"]["temperature"], group["key"]["batch_size"]
        about = f"Tokens per second at **T = {temperature:g}**; {_decoded(batch_size)}; {_swept(group)}.\n"
        kinds.setdefault(about, [about]).append(_of_target(group))
    named = [f"{name} {re.split('[+-]', version)[0]}" for name, version in sorted(versions.items())]
    return "\n".join([*(text for texts in kinds.values() for text in texts), f"Versions: {', '.join(named)}.\n"])


def _of_target(group: dict[str, Any]) -> str:
    """Return the speeds of a target; above the table how many texts are equal, if that is so for each engine."""
    found = _configurations(group)
    equal = [_equal_texts(group, *name) for name in found]
    label = f"{group['key']['models']}, {_WIDTHS[group['key']['precision']]}"
    if len(set(equal)) == 1:
        label += f", {equal[0]} texts equal" * (equal[0] != "–")
        equal = ["–"] * len(equal)
    rows = [(*row, texts) for row, texts in zip(_compared(found), equal, strict=True)]
    return f"{label}:\n\n{table(*_filled(('engine', *_HEAD, 'equal texts'), rows))}"


def _filled(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table without the columns in which nothing was measured."""
    columns = [column for column in zip(head, *rows, strict=True) if any(cell.strip("*–") for cell in column[1:])]
    titles, *lines = map(list, zip(*columns, strict=True))
    return titles, lines


def _swept(group: dict[str, Any]) -> str:
    """Return among which settings each engine's fastest were found."""
    gammas, ngrams = (", ".join(map(str, group[name])) for name in ("gammas", "ngrams"))
    fastest = "the fastest of " * (len(group["gammas"]) > 1 or len(group["ngrams"]) > 1)
    return f"{fastest}γ = {gammas}, n-grams of {ngrams}"


def _parameters(models: str) -> float:
    """Return the millions of parameters that the name of a target states."""
    return float(models.removesuffix("M"))


def _decoded(batch_size: int) -> str:
    """Return what was decoded, how often, where and when."""
    data = _data("vs_engines")
    settings, machine = data["settings"], data["machine"]
    at_a_time = "one at a time" if batch_size == 1 else f"{batch_size} at a time"
    return (
        f"{settings['prompts']} prompts × {settings['tokens']} tokens, {at_a_time}, medians of "
        f"{settings['rounds']} rounds; {machine['threads']} {machine['processor']} threads, {data['date']}"
    )


def _configurations(group: dict[str, Any]) -> dict[tuple[str, str], Methods]:
    """Return what was measured of each engine in each configuration.

    Raises:
        ValueError: Two rows are of the same method, or one is faster than its tokens per target pass allow.
    """
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in group["rows"]:
        methods = found.setdefault((row["engine"], row["precision"]), {})
        if row["method"] in methods:
            raise ValueError(f"vs_engines.json: {group['key']}: two rows are {_name(row)}; keep one.")
        methods[row["method"]] = row
    return {
        name: {
            method: (row["tokens_per_second"]["median"], _speed(row, methods.get("plain")))
            for method, row in methods.items()
        }
        for name, methods in found.items()
    }


def _name(row: dict[str, Any]) -> str:
    return f"{row['engine']} {row['precision']} {row['method']}"


def _speed(row: dict[str, Any], plain: dict[str, Any] | None) -> str:
    """Return tokens per second, and in parentheses the speed-up over plain decoding in the same configuration."""
    speed = row["tokens_per_second"]["median"]
    if row["method"] == "plain" or plain is None:
        return f"{speed:.0f}"
    passes = row["target_passes"]
    bound = plain["target_passes"] / passes if passes else row["settings"]["gamma"] + 1
    return f"{speed:.0f} ({speedup(speed, plain['tokens_per_second']['median'], bound, _name(row)):.1f}×)"


def _compared(found: dict[tuple[str, str], Methods]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each engine and configuration, with the fastest of each column in bold."""
    columns = [[methods.get(way, (0.0, "–")) for methods in found.values()] for way in _COLUMNS]
    columns.append([_best(methods) for methods in found.values()])
    cells = [[f"**{text}**" if speed == max(column)[0] else text for speed, text in column] for column in columns]
    for (engine, precision), *row in zip(found, *cells, strict=True):
        _, _, variant = precision.partition("-")
        yield f"{_ENGINES[engine]}{variant and f', {variant}'}", *row


def _best(methods: Methods) -> tuple[float, str]:
    """Return the speed of the fastest way to decode, and the same as text, with its name if it has no column."""
    way, (speed, _) = max(methods.items(), key=lambda one: one[1])
    return speed, f"{speed:.0f}{f', {way}' * (way not in _COLUMNS)}"


def _equal_texts(group: dict[str, Any], engine: str, precision: str) -> str:
    """Return how many texts are those of transformers in float32: the least and the most of all methods."""
    texts = [
        row["equal_texts"] for row in group["rows"] if (row["engine"], row["precision"]) == (engine, precision)
    ]
    if None in texts:  # sampled
        return "–"
    counts, (of, *_) = zip(*(text.split(" of ") for text in texts), strict=True)
    least, most = min(map(int, counts)), max(map(int, counts))
    return f"{least} of {of}" if least == most else f"{least} to {most} of {of}"


# --- recorded once ---------------------------------------------------------------------------------------------


def recorded(name: str) -> str:
    """Return a table of docs/data/recorded.json with its settings, machine and date."""
    found = _data("recorded")[name]
    columns = found["columns"]
    ranges = re.compile(r" \([\d.]+ to [\d.]+\)" if found.get("medians_only") else r"(?!)")
    where = cores(found["machine"])
    what = f"{found['settings'][0].upper()}{found['settings'][1:]} ({where}, {found['date']}):\n\n"
    return what + table(columns, [[ranges.sub("", row[column]) for column in columns] for row in found["rows"]])


# --- in vLLM ---------------------------------------------------------------------------------------------------


def vllm() -> str:
    """Return what vLLM did with each drafter, and what was expected."""
    data = _data("vllm_forecast")
    rates = "per-position acceptance rate in vLLM"
    head = ("drafter", "expected drafts/drafted/accepted", "vLLM's counters", rates)
    rows = []
    for row in data["rows"]:
        name, found = row["key"]["drafter"], row["vllm"]
        shown = name if row["forecast"] is None else f"[`{name}`](drafters/{name}.md)"
        rates = " ".join(f"{accepted / found['drafts']:.2f}" for accepted in found["accepted"])
        rows.append((shown, _counted(row["forecast"]), _counted(found), rates))
    settings = data["settings"]
    return (
        f"{table(head, rows)}\n{settings['prompts']} prompts × {settings['tokens']} tokens, greedy, γ = "
        f"{settings['gamma']}, float32, vLLM {settings['vllm']} on a CPU, {data['date']}.\n"
    )


def _counted(found: dict[str, Any] | None) -> str:
    """Return the counts of a run."""
    return "–" if found is None else f"{found['drafts']}/{found['draft_tokens']}/{sum(found['accepted'])}"


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
