"""Shared by the benchmarks: interleaved timing, medians with their range, results that grow, and small models."""

from __future__ import annotations

import datetime
import json
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_core.interface.files import writing_file
from specdec_core.models import LoadedModel, ModelSession
from specdec_core.models.device import synchronize


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


def memory_bandwidth(device: torch.device | str = "cpu") -> float:
    """Return the bytes per second at which a large tensor is read."""
    device = torch.device(device)
    data = torch.ones(64_000_000 if device.type == "cpu" else 1_000_000_000, device=device)

    def read() -> None:
        data.sum()
        synchronize(device)

    read()
    return data.nbytes / min(_seconds(read) for _ in range(5))


def weight_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of a model's weights, which a forward pass reads once."""
    return sum(weight.nbytes for weight in model.parameters())


def floor_seconds(model: torch.nn.Module) -> float:
    """Return the time to read a model's weights once: a lower bound for a forward pass."""
    return weight_bytes(model) / memory_bandwidth(next(model.parameters()).device)


def random_llama(vocab: int, layers: int, width: int) -> LlamaForCausalLM:
    """Return a small model with random weights, whose cost is that of its vocabulary."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=16_384,
    )
    return LlamaForCausalLM(config)


def forward_pass(target: LoadedModel, context: int, drafted: int = 0, rows: int = 1) -> Callable[[], None]:
    """Return a function that runs the last token and a draft of each row through a target, and rolls them back."""
    sources = [[5, 6, 7]] * rows if target.encoder_decoder else None
    session = ModelSession(target, rows, context + drafted + 1, sources)
    tokens = [token % 50 + 5 for token in range(context)]
    draft = torch.arange(7, 7 + drafted).expand(rows, drafted)
    session.forward([tokens[:-1]] * rows)

    def run() -> None:
        session.forward([tokens[-1:]] * rows, draft)
        session.rollback([context - 1] * rows)
        synchronize(target.device)

    return run


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


class Results:
    """The rows of a benchmark, in a file that is written again after each: an interrupted run continues there.

    Args:
        path: The JSON file; None keeps the rows in memory only.
        benchmark: Name of the benchmark.
        settings: What all rows have in common. A file with other settings is an error.

    Raises:
        SystemExit: The file holds something else, with what to do.
    """

    def __init__(self, path: Path | None, benchmark: str, settings: Mapping[str, Any]) -> None:
        self._path = path
        self.data: dict[str, Any] = {
            "benchmark": benchmark,
            "date": datetime.date.today().isoformat(),
            "settings": dict(settings),
            "machine": machine(),
            "rows": [],
        }
        if path is not None and path.exists():
            self._continue(path)

    def _continue(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            rows = list(found["rows"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path} holds no results ({error!r}). Name another file.") from error
        mine = json.loads(json.dumps(self.data))
        for part in ("benchmark", "settings", "machine"):
            if found.get(part) != mine[part]:
                raise SystemExit(
                    f"{path} was written with other {part}: {json.dumps(found.get(part))}, and not "
                    f"{json.dumps(mine[part])}. Remove it, or name another file."
                )
        self.data["rows"] = rows

    def row(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the row with a key, or None."""
        return next((row for row in self.data["rows"] if row["key"] == dict(key)), None)

    def add(self, key: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        """Add a row, instead of one with the same key, and write the file."""
        made = {"key": dict(key), **row}
        self.data["rows"] = [other for other in self.data["rows"] if other["key"] != made["key"]] + [made]
        self.write()

    def write(self, **parts: Any) -> None:
        """Write the file, with further parts beside the rows."""
        self.data |= parts
        if self._path is not None:
            with writing_file(self._path) as path:
                path.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")


def progress(text: str) -> None:
    """Print a line on standard error: standard output is for the result."""
    print(text, file=sys.stderr, flush=True)
