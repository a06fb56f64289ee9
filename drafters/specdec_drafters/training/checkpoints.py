"""The folder of a training that is not finished: its checkpoints, its rows, its learning curve.

It lies beside the output and is named after it: `OUTPUT.training`. A checkpoint is one safetensors file: weights,
the optimisers' state and the random generator's as tensors, all else as JSON in its header.
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

from specdec_core.errors import ConfigError
from specdec_core.output import writing_file
from specdec_drafters.training.optimisers import flatten, restore
from specdec_drafters.training.rows import Rows
from specdec_drafters.training.sources import Material
from specdec_drafters.training.wording import option, value

_FORMAT = "specdec training 1"
_ROW_PARTS = ("tokens", "mask", "sources", "source_mask")


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        step: Steps done.
        tokens: Tokens trained on.
        seconds: Time they took, measurements included.
        loss_sum: Of the losses since the last point of the curve.
        loss_count: How many those are.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0


class TrainingFolder:
    """Where a training keeps what it needs to go on after an interruption.

    Args:
        output: Where its result will go.
        settings: What must be the same for a training to go on: options, and values that JSON can hold.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any]) -> None:
        self.path = output.with_name(f"{output.name}.training")
        self._settings = json.loads(json.dumps(dict(settings)))
        self._checkpoint = self.path / "checkpoint.safetensors"
        self._previous = self.path / "checkpoint.previous.safetensors"
        self._rows = self.path / "rows.safetensors"
        self.curve = self.path / "curve.jsonl"

    def begin(self, *, resume: bool, overwrite: bool) -> None:
        """Make sure that there is a training to go on with, or none in the way of a new one.

        Raises:
            ConfigError: There is none to go on with; or there is one, and neither `resume` nor `overwrite` was
                said.
        """
        if resume:
            if not self._there():
                raise ConfigError(
                    f"there is no checkpoint in {self.path} to resume from; leave --resume out to begin, and look "
                    "whether --output is the same as before."
                )
            self._read_header(self._latest())
            return
        if self._there() and not overwrite:
            raise ConfigError(
                f"{self.path} holds a training that was not finished; --resume goes on with it, --overwrite "
                "begins anew."
            )
        self.remove()

    def tidy(self) -> None:
        """Delete the folder if there is no checkpoint in it to go on from."""
        if not self._there():
            self.remove()

    def _there(self) -> bool:
        return self._checkpoint.is_file() or self._previous.is_file()

    def remove(self) -> None:
        """Delete the folder with all that belongs to the training."""
        for path in (self._checkpoint, self._previous, self._rows, self.curve):
            path.unlink(missing_ok=True)
        for left in self.path.glob(".*.part"):  # of a process that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            shutil.rmtree(self.path)

    def save(self, parameters: Mapping[str, Tensor], optimisers: Sequence[Optimizer], progress: Progress) -> None:
        """Write a checkpoint aside and give it its name when it is whole; the one before is kept.

        Raises:
            ConfigError: The disk takes no more.
        """
        states, numbers = flatten(optimisers)
        tensors = {f"weight.{name}": weight for name, weight in parameters.items()}
        tensors |= {f"optimiser.{name}": state for name, state in states.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        device = _device(parameters)
        if device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(device)
        header = {"progress": asdict(progress), "numbers": numbers}
        with writing_file(self._checkpoint) as place:
            self._write(place, tensors, header)
            if self._checkpoint.is_file():
                self._checkpoint.replace(self._previous)

    def load(self, parameters: Mapping[str, Tensor], optimisers: Sequence[Optimizer]) -> Progress:
        """Put back the last checkpoint, in place.

        Raises:
            ConfigError: It was cut short, is of other settings or of other weights; with what to do.
        """
        path = self._latest()
        header = self._read_header(path)
        tensors = _read(path, self._advice(path))
        saved = {name.removeprefix("weight."): t for name, t in tensors.items() if name.startswith("weight.")}
        shapes = {name: weight.shape for name, weight in parameters.items()}
        if {name: weight.shape for name, weight in saved.items()} != shapes:
            raise ConfigError(f"checkpoint {path} holds other weights than those that are trained. {_ANEW}")
        with torch.no_grad():
            for name, weight in parameters.items():
                weight.copy_(saved[name])
        prefix = "optimiser."
        states = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        try:
            restore(optimisers, states, header["numbers"])
        except (ValueError, KeyError) as error:
            raise ConfigError(
                f"checkpoint {path} is of other optimisers (another torch?): {error}. {_ANEW}"
            ) from error
        torch.set_rng_state(tensors["random.cpu"])
        device = _device(parameters)
        if "random.cuda" in tensors and device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"], device)
        return Progress(**header["progress"])

    def save_rows(self, material: Material) -> None:
        """Keep the rows: what the target wrote took its time, and a text may change."""
        tensors: dict[str, Tensor] = {}
        pools = {f"pool.{number}": pool for number, pool in enumerate(material.pools)}
        for name, rows in {**pools, "held": material.held_out}.items():
            parts = ((part, getattr(rows, part)) for part in _ROW_PARTS)
            tensors |= {f"{name}.{part}": tensor for part, tensor in parts if tensor is not None}
        with writing_file(self._rows) as place:
            self._write(place, tensors, {})

    def load_rows(self) -> Material:
        """Return the rows that were kept.

        Raises:
            ConfigError: They are missing or were cut short.
        """
        if not self._rows.is_file():
            raise ConfigError(f"{self._rows} is missing, which holds what is trained on. {_ANEW}")
        tensors = _read(self._rows, _ANEW)
        names = sorted({name.rsplit(".", 1)[0] for name in tensors} - {"held"})
        return Material(tuple(_rows(tensors, name) for name in names), _rows(tensors, "held"))

    def _write(self, place: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        text = json.dumps({"settings": self._settings, **header})
        save_file(plain, place, metadata={"format": _FORMAT, "training": text})
        with place.open("rb") as file:
            os.fsync(file.fileno())

    def _latest(self) -> Path:
        return self._checkpoint if self._checkpoint.is_file() else self._previous

    def _read_header(self, path: Path) -> dict[str, Any]:
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise ConfigError(
                f"checkpoint {path} was cut short or is damaged ({error}). {self._advice(path)}"
            ) from error
        if header.get("format") != _FORMAT:
            raise ConfigError(f"{path} is no checkpoint of this version of specdec. {_ANEW}")
        read: dict[str, Any] = json.loads(header["training"])
        self._compare(path, read["settings"])
        return read

    def _compare(self, path: Path, saved: Mapping[str, Any]) -> None:
        names = sorted(saved.keys() | self._settings.keys())
        other = [name for name in names if saved.get(name) != self._settings.get(name)]
        if other:
            shown = "; ".join(
                f"{option(name)} was {value(saved.get(name))}, is {value(self._settings.get(name))}"
                for name in other[:4]
            )
            raise ConfigError(
                f"checkpoint {path} is of a training with other settings: {shown}. Give those it was begun with, "
                "or begin anew with --overwrite and without --resume."
            )

    def _advice(self, path: Path) -> str:
        if path == self._checkpoint and self._previous.is_file():
            return f"Delete it: --resume then goes on from the one before it, {self._previous.name}."
        return _ANEW


_ANEW = "Begin anew with --overwrite and without --resume."


def _read(path: Path, advice: str) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} was cut short or is damaged ({error}). {advice}") from error


def _device(parameters: Mapping[str, Tensor]) -> torch.device:
    return next(iter(parameters.values())).device


def _rows(tensors: Mapping[str, Tensor], name: str) -> Rows:
    tokens, mask, sources, source_mask = (tensors.get(f"{name}.{part}") for part in _ROW_PARTS)
    assert tokens is not None
    assert mask is not None
    return Rows(tokens, mask, sources, source_mask)
