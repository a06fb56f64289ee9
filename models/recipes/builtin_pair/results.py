"""Shared by the measuring commands: acceptance rates, training effort, and the JSON record."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from recipes.builtin_pair.architectures import BUILTIN, count_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")


@dataclass
class Agreement:
    """Accumulates the acceptance rate: a sum over the positions of each text."""

    sums: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, p: torch.Tensor, q: torch.Tensor, *, sample: bool) -> None:
        """Add the positions of one text, p and q [T, V]."""
        values = torch.minimum(p, q).sum(-1) if sample else (p.argmax(-1) == q.argmax(-1)).float()
        self.sums.append(values.sum().item())
        self.counts.append(len(values))

    def alpha(self) -> dict[str, float | int]:
        """Return the acceptance rate over all positions, and its standard error over texts."""
        sums, counts = np.array(self.sums), np.array(self.counts)
        alpha = float(sums.sum() / counts.sum())
        spread = (sums - alpha * counts).std(ddof=1) / counts.mean() / math.sqrt(len(counts))
        return {"alpha": round(alpha, 4), "standard_error": round(float(spread), 4), "tokens": int(counts.sum())}


def sizes(model: torch.nn.Module, folder: Path) -> dict[str, int]:
    """Return the size of a model and of its folder."""
    return {
        "parameters": count_parameters(model),
        "folder_bytes": sum(path.stat().st_size for path in folder.iterdir()),
    }


def effort(*runs: Path) -> dict[str, float]:
    """Return the training effort of runs that continued each other.

    Args:
        runs: The checkpoint (`.pt`) or the curve (`curve.jsonl`) of each run.

    Returns:
        Minutes, steps and tokens; empty without any run.
    """
    ends = [_end(run) for run in runs]
    if not ends:
        return {}
    return {
        "training_minutes": round(sum(end["seconds"] for end in ends) / 60, 1),
        "training_steps": sum(end["step"] for end in ends),
        "training_tokens": sum(end["tokens"] for end in ends),
    }


def _end(run: Path) -> dict[str, Any]:
    """Return how far a run got."""
    if run.suffix == ".pt":
        progress: dict[str, Any] = torch.load(run, weights_only=True)["progress"]
    else:
        progress = json.loads(run.read_text(encoding="utf-8").splitlines()[-1])
    return progress


def print_results(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Mapping[str, Any]],
    libraries: Sequence[str] = LIBRARIES,
) -> None:
    """Parse the command line, then print the results with date, machine and versions, and write them to --out.

    Args:
        parser: Has the command's own options; the common ones are added.
        measure: Returns the results, given the arguments.
        libraries: Libraries whose versions are recorded.
    """
    parser.add_argument("--models", type=Path, default=BUILTIN, help="parent of model folders and test sets")
    parser.add_argument("--machine", default="CPU", help="description of the machine")
    parser.add_argument("--out", type=Path, help="also write the JSON object here")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": arguments.machine,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in libraries},
        **measure(arguments),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
