"""Parts of docs/gpu.md: forecasts beside figures that others have published."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

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


_NEAR = 0.25
"""The error of a forecast up to which it counts as near."""


def _summary(errors: Mapping[str, tuple[float, float]], digits: int, unit: str = "") -> str:
    """Return how many forecasts are near, and each of the others beside its published figure."""
    far = {name: pair for name, pair in errors.items() if abs(pair[0] / pair[1] - 1) > _NEAR}
    shown = "; ".join(f"{name}, {_beside(*pair, digits, unit)}" for name, pair in far.items())
    return f"{len(errors) - len(far)} of {len(errors)} are within {_NEAR:.0%}. The others: {shown}.\n"


def gpt_fast_text() -> str:
    """Return the forecasts beside gpt-fast's tokens per second: those without fitted constants, and a summary."""
    rows = {(shape, weights, gpus): (found, published) for shape, weights, gpus, published, found in gpt_fast()}
    alone = {key[0]: pair for key, pair in rows.items() if key[1:] == ("bfloat16", 1)}
    named = {f"{shape} in {weights} on {gpus} GPUs": pair for (shape, weights, gpus), pair in rows.items()}
    shown = "; ".join(f"{shape}, {_beside(*pair, 1)}" for shape, pair in alone.items())
    return f"In bfloat16 on one GPU: {shown}.\n\nAll: {_summary(named, 1)}"


def paper_text() -> str:
    """Return a summary of the forecasts beside the speed-ups of the paper's Table 2."""
    rows = {
        f"{drafter} on {task} at T = {temperature}": (found, published)
        for task, drafter, temperature, _gamma, _c, published, found in paper()
    }
    return _summary(rows, 1, "×")


TABLES = {"gpt-fast": gpt_fast_text, "paper": paper_text}
