"""The tables of docs/gpu.md: forecasts beside what others have published."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from markdown_table import table

from specdec_core.costs.gpu.counting import ModelWork
from specdec_core.costs.gpu.device import Launches, find_device, find_shape
from specdec_core.costs.gpu.forecast import Setting, gpu_forecast
from specdec_core.theory.paper.printed_numbers import TABLE_4

DATA = Path(__file__).parent / "data"
CONTEXT = {"EnDe": 64, "CNNDM": 512}
"""Cached tokens in each task of the paper: sentences, and beginnings of articles."""


@cache
def work(shape: str) -> ModelWork:
    """Return the work of a shape."""
    return ModelWork(find_shape(shape))


def gpt_fast() -> Iterator[tuple[str, str, int, float, float]]:
    """Yield shape, weights, GPUs, tokens per second as published and as forecast."""
    for row in json.loads((DATA / "gpt_fast.json").read_text(encoding="utf-8"))["rows"]:
        counted = work(row["shape"]).count(1, context=100)
        seconds = find_device("a100").seconds(
            counted, weights=row["weights"], execution="fused", count=row["gpus"]
        )
        yield row["shape"], row["weights"], row["gpus"], row["tokens_per_second"], 1 / seconds


def paper() -> Iterator[tuple[str, str, int, int, float, float, float]]:
    """Yield task, drafter, temperature, gamma, c as forecast, and the speed-up as published and as forecast."""
    for row in TABLE_4:
        setting = Setting(
            find_device("tpu-v4"), context=CONTEXT[row.task], execution="fused", launches=Launches(0, 0)
        )
        drafter = work(row.drafter.lower())
        found = gpu_forecast(work("t5-11b"), drafter, setting, row.alpha, gamma=row.gamma)
        key = row.task, row.drafter, row.temperature, row.gamma
        yield *key, found.costs.draft[1] / found.costs.verify[0], row.measured, found.improvement


def _beside(forecast: float, published: float, digits: int, unit: str = "") -> str:
    """Return a forecast beside what was published, and by how much it is off."""
    return f"{forecast:.{digits}f}{unit}/{published:.{digits}f}{unit} ({forecast / published - 1:+.0%})"


def gpt_fast_table() -> str:
    """Return the forecast beside gpt-fast's tokens per second, with a column for each number of GPUs."""
    rows: dict[tuple[str, str], dict[int, str]] = {}
    for shape, weights, gpus, published, forecast in gpt_fast():
        rows.setdefault((shape, weights), {})[gpus] = _beside(forecast, published, 1)
    counts = sorted({count for cells in rows.values() for count in cells})
    head = ("model", "weights", *(f"{count} GPU{'s' * (count > 1)}" for count in counts))
    return table(head, ((*key, *(cells.get(count, "") for count in counts)) for key, cells in rows.items()))


def paper_table() -> str:
    """Return the forecast beside the speed-ups of the paper's Table 2, with a column for each drafter."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for task, drafter, temperature, _gamma, _c, published, found in paper():
        rows.setdefault((task, str(temperature)), {})[drafter] = _beside(found, published, 1, "×")
    drafters = list(dict.fromkeys(drafter for cells in rows.values() for drafter in cells))
    return table(
        ("task", "T", *drafters), ((*key, *map(cells.__getitem__, drafters)) for key, cells in rows.items())
    )


TABLES = {"gpt-fast": gpt_fast_table, "paper": paper_table}
