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


def _off(published: float, forecast: float) -> str:
    return f"{forecast / published - 1:+.0%}"


def gpt_fast_table() -> str:
    """Return the forecast beside gpt-fast's tokens per second."""
    head = ("model", "weights", "GPUs", "gpt-fast, tokens/s", "forecast", "off by")
    return table(
        head,
        (
            (shape, weights, str(gpus), f"{published:.1f}", f"{forecast:.1f}", _off(published, forecast))
            for shape, weights, gpus, published, forecast in gpt_fast()
        ),
    )


def paper_table() -> str:
    """Return the forecast beside the speed-ups of the paper's Table 2."""
    head = ("task", "drafter", "T", "gamma", "c, forecast", "Table 2", "forecast", "off by")
    return table(
        head,
        (
            (*map(str, key), f"{c:.3f}", f"{published:.1f}×", f"{found:.2f}×", _off(published, found))
            for *key, c, published, found in paper()
        ),
    )


TABLES = {"gpt-fast": gpt_fast_table, "paper": paper_table}
