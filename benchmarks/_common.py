"""What the benchmarks share: timing in turns, medians with spread, and what machine it was."""

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
    """Return median, smallest and largest."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
    }


def in_turns(
    cells: Mapping[str, Callable[[], Any]], repeats: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Time functions A B A B ..., after one round that is not counted, so that a drifting machine favours none.

    Returns:
        The seconds of each function's runs, and what each returned last.
    """
    last = {name: function() for name, function in cells.items()}
    seconds: dict[str, list[float]] = {name: [] for name in cells}
    for _ in range(repeats):
        for name, function in cells.items():
            begun = perf_counter()
            last[name] = function()
            seconds[name].append(perf_counter() - begun)
    return seconds, last


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Return the spread of the ratios, pair by pair: runs of one round saw the same machine."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def memory_bandwidth() -> float:
    """Return the bytes a second at which a large tensor is read, the floor of a step being bytes over it."""
    data = torch.ones(64_000_000)
    best = min(_seconds(lambda: data.sum()) for _ in range(5))
    return data.nbytes / best


def floor_seconds(model: torch.nn.Module) -> float:
    """Return the time in which a model's weights are read from memory once: no forward takes less."""
    return sum(weight.nbytes for weight in model.parameters()) / memory_bandwidth()


def _seconds(function: Callable[[], Any]) -> float:
    begun = perf_counter()
    function()
    return perf_counter() - begun


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
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
