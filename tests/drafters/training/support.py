"""Tiny targets and short trainings on them, and progress that is kept."""

import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_core.interface import Trainer
from specdec_core.models import LoadedModel, load_model
from specdec_drafters.settings import TrainingConfig
from tests.tiny import tiny_model

VOCAB = 40


class Recorder:
    """Keeps stages, advances and points; calls `on_advance` with how often it was told of one in this stage."""

    def __init__(self, on_advance: Callable[[str, int], None] = lambda stage, number: None) -> None:
        self.stages: list[tuple[str, float | None]] = []
        self.advances: dict[str, list[float]] = {}
        self.points: list[dict[str, float]] = []
        self._on_advance = on_advance

    def stage(self, what: str, total: float | None = None) -> None:
        self.stages.append((what, total))

    def advance(self, done: float, note: str = "") -> None:
        stage = self.stages[-1][0]
        self.advances.setdefault(stage, []).append(done)
        self._on_advance(stage, len(self.advances[stage]))

    def measured(self, point: Mapping[str, float]) -> None:
        self.points.append(dict(point))


def interrupting(step: int) -> Recorder:
    """Return progress at whose step Ctrl-C is pressed."""

    def press(stage: str, number: int) -> None:
        if stage == "training" and number == step:
            signal.raise_signal(signal.SIGINT)

    return Recorder(press)


def trained(trainer: Trainer, target: LoadedModel) -> tuple[dict[str, float], dict[str, float]]:
    """Train; return the first point and the last, after a check that the target stays as it is."""
    before, progress = [weight.clone() for weight in target.model.parameters()], Recorder()
    trainer.train(progress)
    assert all(map(torch.equal, before, target.model.parameters()))
    assert all(weight.grad is None for weight in target.model.parameters())
    return progress.points[0], progress.points[-1]


def saved_targets(root: Path, sizes: Mapping[str, Mapping[str, int]] | None = None) -> Callable[..., LoadedModel]:
    """Return a function from a family to a tiny target of `VOCAB` tokens, saved and loaded once.

    It is blunt enough that a drafter has something to gain, and sharp enough that depths differ.
    """
    loaded: dict[str, LoadedModel] = {}

    def targets(family: str = "llama") -> LoadedModel:
        if family not in loaded:
            more = (sizes or {}).get(family, {})
            tiny_model(family, VOCAB, sharpness=1.5, **more).save_pretrained(root / family)
            loaded[family] = load_model(root / family)
        return loaded[family]

    return targets


def short_training(target: LoadedModel, folder: Path) -> dict[str, Any]:
    """Return settings of a short training, with sources in a folder where the target has an encoder."""
    given: dict[str, Any] = {
        "target": target.name,
        "samples": 1500,
        "length": 24,
        "held_out": 300,
        "batch_tokens": 256,
        "steps": 40,
        "dtype": "float32",
    }
    if target.encoder_decoder:
        lines = [{"source": [2 + (7 * n + m * m) % 38 for m in range(3 + n % 5)]} for n in range(32)]
        given["sources"] = folder / "sources.jsonl"
        given["sources"].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return given


def short_configs(kind: type[TrainingConfig], output: str, family: str = "llama", **settings: Any) -> Any:
    """Return a fixture: it returns the config of a short training, changed as wanted."""

    @pytest.fixture
    def config_for(targets: Callable[[str], LoadedModel], tmp_path: Path) -> Callable[..., TrainingConfig]:
        def config_for(family: str = family, **changes: Any) -> TrainingConfig:
            given = {**short_training(targets(family), tmp_path), "output": tmp_path / output, **settings}
            return kind(**{**given, **changes})

        return config_for

    return config_for
