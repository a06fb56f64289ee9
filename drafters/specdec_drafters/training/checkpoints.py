"""The folder of an unfinished training run: its checkpoints, data and learning curve.

It is beside the output, named `OUTPUT.training`. A checkpoint is one safetensors file: weights, optimizer state
and random state as tensors, everything else as JSON in the header.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from specdec_core.interface import ConfigError
from specdec_core.interface.files import writing_file
from specdec_drafters.training.optimizers import flatten, restore
from specdec_drafters.training.rows import Rows
from specdec_drafters.training.sources import TrainingData

_FORMAT = "specdec training 2"
_ROW_PARTS = ("tokens", "mask", "sources", "source_mask")


@dataclass
class TrainingState:
    """State of a training run.

    Attributes:
        step: Steps done.
        tokens: Tokens trained on.
        seconds: Time spent, evaluation included.
        loss_sum: Sum of the losses since the last point of the curve.
        loss_count: Number of those losses.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0


class TrainingFolder:
    """Stores what a training run needs to continue after an interruption.

    Args:
        output: Path of the result.
        settings: Options that must be unchanged to resume, with JSON values.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any]) -> None:
        self.path = output.with_name(f"{output.name}.training")
        self._settings = json.loads(json.dumps(dict(settings)))
        self._checkpoint = self.path / "checkpoint.safetensors"
        self._previous = self.path / "checkpoint.previous.safetensors"
        self._rows = self.path / "rows.safetensors"
        self.curve = self.path / "curve.jsonl"

    def begin(self, *, resume: bool, overwrite: bool) -> None:
        """Check that there is a run to resume, or none in the way of a new one.

        Raises:
            ConfigError: There is nothing to resume; or there is an unfinished run, and neither `resume` nor
                `overwrite` is set.
        """
        if resume:
            if not self._there():
                raise ConfigError(
                    f"{self.path} has no checkpoint to resume from; check --output, or start without --resume."
                )
            self._read_header(self._latest())
            return
        if self._there() and not overwrite:
            raise ConfigError(
                f"{self.path} holds an unfinished training run; --resume continues it, --overwrite starts over."
            )
        self.remove()

    def tidy(self) -> None:
        """Delete the folder if it has no checkpoint."""
        if not self._there():
            self.remove()

    def _there(self) -> bool:
        return self._checkpoint.is_file() or self._previous.is_file()

    def remove(self) -> None:
        """Delete the folder and everything that belongs to the run."""
        for path in (self._checkpoint, self._previous, self._rows, self.curve):
            path.unlink(missing_ok=True)
        for left in self.path.glob(".*.part"):  # left by a killed process
            shutil.rmtree(left, ignore_errors=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            shutil.rmtree(self.path)

    def save(
        self, parameters: Mapping[str, Tensor], optimizers: Sequence[Optimizer], state: TrainingState
    ) -> None:
        """Write a checkpoint atomically and keep the previous one.

        Raises:
            ConfigError: The file cannot be written.
        """
        states, numbers = flatten(optimizers)
        tensors = {f"weight.{name}": weight for name, weight in parameters.items()}
        tensors |= {f"optimizer.{name}": one for name, one in states.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        device = _device(parameters)
        if device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(device)
        header = {"state": asdict(state), "numbers": numbers}
        with writing_file(self._checkpoint) as path:
            self._write(path, tensors, header)
            if self._checkpoint.is_file():
                self._checkpoint.replace(self._previous)

    def load(self, parameters: Mapping[str, Tensor], optimizers: Sequence[Optimizer]) -> TrainingState:
        """Load the last checkpoint, in place.

        Raises:
            ConfigError: It is truncated, or has other settings or weights; the message says what to do.
        """
        path = self._latest()
        header = self._read_header(path)
        tensors = _read(path, self._advice(path))
        damaged = f"checkpoint {path} is damaged: "
        saved = {name.removeprefix("weight."): t for name, t in tensors.items() if name.startswith("weight.")}
        shapes = {name: weight.shape for name, weight in parameters.items()}
        if {name: weight.shape for name, weight in saved.items()} != shapes:
            raise ConfigError(f"checkpoint {path} has other weights than this run. {_ANEW}")
        wild = [name for name, weight in saved.items() if not torch.isfinite(weight).all()]
        if wild:
            raise ConfigError(f"{damaged}the weight {wild[0]} is not finite. {self._advice(path)}")
        with torch.no_grad():
            for name, weight in parameters.items():
                weight.copy_(saved[name])
        prefix = "optimizer."
        states = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        try:
            restore(optimizers, states, header["numbers"])
        except (ValueError, KeyError) as error:
            raise ConfigError(
                f"checkpoint {path} has another optimizer state (another torch version?): {error}. {_ANEW}"
            ) from error
        try:
            torch.set_rng_state(tensors["random.cpu"])
            device = _device(parameters)
            if "random.cuda" in tensors and device.type == "cuda":
                torch.cuda.set_rng_state(tensors["random.cuda"], device)
            return TrainingState(**header["state"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise ConfigError(f"{damaged}{error}. {self._advice(path)}") from error

    def save_rows(self, data: TrainingData) -> None:
        """Save the training data: sampling from the target takes time, and a text file may change."""
        tensors: dict[str, Tensor] = {}
        pools = {f"pool.{number}": pool for number, pool in enumerate(data.pools)}
        for name, rows in {**pools, "held": data.held_out}.items():
            parts = ((part, getattr(rows, part)) for part in _ROW_PARTS)
            tensors |= {f"{name}.{part}": tensor for part, tensor in parts if tensor is not None}
        with writing_file(self._rows) as path:
            self._write(path, tensors, {})

    def load_rows(self) -> TrainingData:
        """Return the saved training data.

        Raises:
            ConfigError: It is missing or truncated.
        """
        if not self._rows.is_file():
            raise ConfigError(f"{self._rows}, which holds the training data, is missing. {_ANEW}")
        tensors = _read(self._rows, _ANEW)
        names = sorted({name.rsplit(".", 1)[0] for name in tensors} - {"held"})
        return TrainingData(tuple(_rows(tensors, name) for name in names), _rows(tensors, "held"))

    def _write(self, path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        text = json.dumps({"settings": self._settings, "tensors": sorted(plain), **header})
        save_file(plain, path, metadata={"format": _FORMAT, "training": text})
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def _latest(self) -> Path:
        return self._checkpoint if self._checkpoint.is_file() else self._previous

    def _read_header(self, path: Path) -> dict[str, Any]:
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise ConfigError(
                f"checkpoint {path} is truncated or damaged ({error}). {self._advice(path)}"
            ) from error
        if header.get("format") != _FORMAT:
            raise ConfigError(f"{path} is not a checkpoint of this version of specdec. {_ANEW}")
        try:
            read: dict[str, Any] = json.loads(header["training"])
            saved = dict(read["settings"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"checkpoint {path} is damaged: {error}. {self._advice(path)}") from error
        self._compare(path, saved)
        return read

    def _compare(self, path: Path, saved: Mapping[str, Any]) -> None:
        names = sorted(saved.keys() | self._settings.keys())
        other = [name for name in names if saved.get(name) != self._settings.get(name)]
        if other:
            shown = "; ".join(
                f"{_option(name)} was {_value(saved.get(name))}, is {_value(self._settings.get(name))}"
                for name in other[:4]
            )
            raise ConfigError(
                f"checkpoint {path} has other settings: {shown}. Use the original settings, or start over with "
                "--overwrite and without --resume."
            )

    def _advice(self, path: Path) -> str:
        if path == self._checkpoint and self._previous.is_file():
            return f"Delete it: --resume then continues from the previous one, {self._previous.name}."
        return _ANEW


_ANEW = "Start over with --overwrite and without --resume."


def _read(path: Path, advice: str) -> dict[str, Tensor]:
    """Return the tensors of a file, all of which its header lists."""
    try:
        with safe_open(path, framework="pt") as file:
            listed = json.loads((file.metadata() or {})["training"])["tensors"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is truncated or damaged ({error}). {advice}") from error
    if sorted(tensors) != listed:
        other = sorted(tensors.keys() ^ set(listed))
        raise ConfigError(f"{path} is damaged: {other[0]} is missing or was added. {advice}")
    return tensors


def _device(parameters: Mapping[str, Tensor]) -> torch.device:
    return next(iter(parameters.values())).device


def _rows(tensors: Mapping[str, Tensor], name: str) -> Rows:
    tokens, mask, sources, source_mask = (tensors.get(f"{name}.{part}") for part in _ROW_PARTS)
    assert tokens is not None
    assert mask is not None
    return Rows(tokens, mask, sources, source_mask)


def _option(name: str) -> str:
    """Return a setting as the user types it: `--learning-rate` for `learning_rate`."""
    return f"--{name.replace('_', '-')}"


def _value(given: Any) -> str:
    """Return the value of an option in words."""
    if given is None:
        return "not given"
    if isinstance(given, bool):
        return "on" if given else "off"
    return str(given)
