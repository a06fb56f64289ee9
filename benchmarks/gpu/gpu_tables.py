"""Tables of what `benchmarks/gpu/run` wrote, for the terminal and for a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def is_done(row: Mapping[str, Any] | None) -> bool:
    """Return whether a row was measured."""
    return row is not None and not {"failed", "left_out"} & row.keys()


def missing(row_of: Callable[[dict[str, Any]], Any], keys: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the rows that were not measured, with the reason."""
    found = {" ".join(map(str, key.values())): row_of(key) for key in keys if not is_done(row_of(key))}
    return {name: reason(row) for name, row in found.items()}


def reason(row: Mapping[str, Any] | None) -> str:
    """Return why a row was not measured."""
    if row is None:
        return "not reached"
    return f"failed: {row['failed']}" if "failed" in row else f"left out: {row['left_out']}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; nothing if it has no rows."""
    if not (rows := list(rows)):
        return ""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def rows_of(data: Mapping[str, Any], part: str) -> list[dict[str, Any]]:
    """Return the measured rows of a part, with their keys."""
    return [row["key"] | row for row in data["rows"] if row["key"].get("part") == part and is_done(row)]


def whole(data: Mapping[str, Any], *tables: str) -> str:
    """Return tables with the machine above and what is missing below."""
    machine, settings = data["machine"], data["settings"]
    where = machine["gpu"] if settings["device"] == "cuda" else settings["device"]
    words = f"{data['date']}, {where}, torch {machine['torch']}, transformers {machine['transformers']}"
    parts = [f"Measured on {words}, {settings['dtype']}.\n", *(one for one in tables if one)]
    if left := data.get("missing"):
        parts.append("Not measured:\n\n" + "".join(f"- {name}: {why}\n" for name, why in left.items()))
    return "\n".join(parts)


def correctness(data: Mapping[str, Any]) -> str:
    """Return how many tests passed."""
    names = ("passed", "failed", "skipped")
    rows = [row for row in data["rows"] if is_done(row)]
    return whole(
        data,
        table(("tests", *names), [(row["key"]["suite"], *(row.get(name, 0) for name in names)) for row in rows]),
    )


def speed(data: Mapping[str, Any]) -> str:
    """Return the speeds of all methods, each over plain decoding of transformers, and where a step's time goes."""
    rows = rows_of(data, "tokens")
    cells = {(*cell_of(row), row["mode"], row["method"]): row["tokens_per_second"]["median"] for row in rows}
    head = ("target", "context", "batch", "mode", "method", "tokens/s", "over transformers", "over plain")
    more = ("tokens/step", "step, ms", "draft", "target", "rest", "bandwidth", "GB")
    names = ("tokens_per_step", "step_ms", "draft_ms", "verify_ms", "rest_ms", "bandwidth_share", "peak_gigabytes")
    tokens = []
    for row in rows:
        rate, own = row["tokens_per_second"]["median"], "baseline" if row["mode"] == "transformers" else "plain"
        over = (cells.get((*cell_of(row), *one)) for one in (("transformers", "baseline"), (row["mode"], own)))
        shown = (f"{rate / one:.2f}×" if one else "–" for one in over)
        tokens.append(
            (*cell_of(row), row["mode"], row["method"], f"{rate:.1f}", *shown, *(row.get(n, "–") for n in names))
        )
    small = [
        (
            row["mode"],
            row["batch"],
            *(row[name]["median"] for name in ("step_ms", "draft_ms", "verify_ms", "rest_ms")),
        )
        for row in rows_of(data, "overhead")
    ]
    counts = [
        (row["target"], row["mode"], row["method"], row["launches"], row["waits"])
        for row in rows_of(data, "launches")
    ]
    speeds = [f"Memory is read at {row['gigabytes_per_second']} GB/s.\n" for row in rows_of(data, "bandwidth")]
    return whole(
        data,
        *speeds,
        table((*head, *more), tokens),
        table(("small models", "batch", "step, ms", "draft", "target and acceptance", "rest"), small),
        table(("target", "mode", "method", "launches per step", "waits"), counts),
    )


def cell_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what makes speeds comparable."""
    return row["target"], row["context"], row["batch"]


def choose(data: Mapping[str, Any]) -> str:
    """Return when compiling pays, the memory of texts, and the soak."""
    passes = []
    for row in rows_of(data, "passes"):
        times = (
            row["ms"][f"{how} {drafted}"]["median"] for drafted in (0, 4, 16) for how in ("eager", "compiled")
        )
        pays = row["pays_after_passes"] or "never"
        passes.append((row["model"], row["batch"], row["floor_ms"], *times, row["seconds_to_compile"], pays))
    names = ("weights_gigabytes", "peak_gigabytes", "rest_gigabytes")
    memory = [
        (*cell_of(row), row["mode"], row["method"], *(row[name] for name in names))
        for row in rows_of(data, "memory")
    ]
    soaks = [
        f"Soak of {row['soaked_seconds']} s: {row['texts']} texts, {row['tokens']} tokens, at most "
        f"{row['most_gigabytes']} GB, {row['grown_gigabytes_in_second_half']} GB more in the second half.\n"
        for row in rows_of(data, "soak")
    ]
    widths = (f"{how}, {drafted}" for drafted in (0, 4, 16) for how in ("eager", "compiled"))
    return whole(
        data,
        table(("model", "batch", "floor, ms", *widths, "to compile, s", "pays after passes"), passes),
        verdict(rows_of(data, "passes")),
        table(("target", "context", "batch", "mode", "method", "weights, GB", "peak", "rest"), memory),
        *soaks,
    )


LONG = 2_000
"""Passes within which `compile` must have paid to be a default: those of ten texts."""


def verdict(passes: Sequence[Mapping[str, Any]]) -> str:
    """Return what `compile: auto` should do, by the passes that were measured."""
    if not passes:
        return ""
    pays = [row for row in passes if (row["pays_after_passes"] or LONG + 1) <= LONG]
    slower = [row for row in passes if row["eager_over_compiled"]["4"]["median"] < 1]
    names = ", ".join(f"{row['model']} at batch {row['batch']}" for row in pays) or "none"
    should = "compile" if len(pays) == len(passes) and not slower else "not compile every model"
    return (
        f"`compile: auto` should {should}: {len(pays)} of {len(passes)} pay within {LONG} passes ({names}); "
        f"{len(slower)} are slower compiled.\n"
    )


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "correctness": correctness,
    "speed": speed,
    "choose": choose,
}
