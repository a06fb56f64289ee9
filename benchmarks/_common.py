"""Shared by the benchmarks: interleaved timing, medians with their range, and a description of the machine."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
import transformers


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Return median, minimum and maximum."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
    }


def interleaved(
    functions: Mapping[str, Callable[[], Any]], repeats: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Time functions in the order A B A B ..., after a warm-up round.

    Drift of the machine then affects all of them.

    Returns:
        The seconds of each function's runs, and its last result.
    """
    results = {name: function() for name, function in functions.items()}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = perf_counter()
            results[name] = function()
            seconds[name].append(perf_counter() - start)
    return seconds, results


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, float]:
    """Return the spread of the ratios within each round, whose runs saw the machine in the same state."""
    return spread([a / b for a, b in zip(numerators, denominators, strict=True)])


def memory_bandwidth() -> float:
    """Return the bytes per second at which a large tensor is read."""
    data = torch.ones(64_000_000)
    best = min(_seconds(lambda: data.sum()) for _ in range(5))
    return data.nbytes / best


def floor_seconds(model: torch.nn.Module) -> float:
    """Return the time to read a model's weights once: a lower bound for a forward pass."""
    return sum(weight.nbytes for weight in model.parameters()) / memory_bandwidth()


def _seconds(function: Callable[[], Any]) -> float:
    start = perf_counter()
    function()
    return perf_counter() - start


def machine() -> dict[str, Any]:
    """Return the hardware and software that the numbers depend on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


def report(result: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps({**result, "machine": machine()}, indent=2))
