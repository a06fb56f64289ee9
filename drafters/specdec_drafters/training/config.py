"""Settings shared by the gradient-based trainers. Importing this imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from specdec_core.interface import TrainerConfig
from specdec_drafters.common import TextSource

DEFAULT_MINUTES = 10.0
"""Default length of a training run."""

LossName = Literal["ce", "kl", "tv", "kl-then-tv"]
"""Name of a training loss."""

Retention = Annotated[float, Field(gt=0, le=1)]
"""The share of the positions of one depth that is trained at the next one."""


class DataConfig(TrainerConfig):
    """What a drafter is trained on: text, token ids, or tokens that the target generates."""

    text: TextSource | None = None
    """A UTF-8 text to train on, or `builtin:stdlib`, the Python standard library."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """The most bytes of `text` to read; by default all, or 4 MB of `builtin:stdlib`."""
    ids: Path | None = None
    """A file of the target's token ids, one sequence per line; it needs no tokenizer."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Number of tokens to sample from the target."""
    sources: Path | None = None
    """For a target with an encoder: a JSONL file of `{"source": ..., "target": ...}`, the target optional."""
    seed: Annotated[int, Field(ge=0)] = 0
    """The seed of everything that is random."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` ...; `auto` is a GPU if there is one."""


class TrainingConfig(DataConfig):
    """Length and pace of a training run."""

    resume: bool = False
    """Continue from the last checkpoint of the same training run."""
    held_out: Annotated[int, Field(ge=1)] = 4096
    """Further tokens to sample from the target, for evaluation."""
    length: Annotated[int, Field(ge=2)] = 512
    """Tokens per training sequence: a window of text, or a sample from the target with its prompt. A model may
    fail in longer texts."""
    batch_tokens: Annotated[int, Field(ge=1)] = 2048
    """Tokens per step."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Number of training steps."""
    minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Minutes to train, instead of `steps`; 10 by default."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The peak learning rate; by default one that suits the model."""
    loss: LossName = "kl-then-tv"
    """`ce`, cross-entropy on the text; `kl`, KL(p || q); `tv`, total variation, which is 1 - alpha; `kl-then-tv`,
    KL first, then increasingly total variation."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The temperature that the pair will decode at, of samples and of both distributions."""
    evaluate_every: Annotated[int, Field(ge=1)] = 50
    """Steps between two evaluations."""
    checkpoint_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    """Minutes between two checkpoints."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of matrix products; `auto` is bfloat16 if the hardware supports it."""

    @model_validator(mode="after")
    def _check_budget(self) -> TrainingConfig:
        if self.steps is not None and self.minutes is not None:
            raise ValueError(f"give 'steps' or 'minutes', not both; got {self.steps} and {self.minutes:g}")
        return self

    @model_validator(mode="after")
    def _check_data(self) -> TrainingConfig:
        read = [name for name in ("text", "ids", "sources") if getattr(self, name) is not None]
        if not read and self.samples is None:
            raise ValueError(
                "give training data: 'samples' (tokens to sample from the target), 'text' (a file, or "
                "builtin:stdlib), 'ids' (a file of token ids), or, for a target with an encoder, 'sources' (a "
                "JSONL file)"
            )
        if len(read) > 1:
            why = ": 'sources' is for targets with an encoder" if "sources" in read else ""
            raise ValueError(f"give {' or '.join(map(repr, read))}, not both{why}")
        if self.text is None and self.max_bytes is not None:
            raise ValueError("'max_bytes' limits 'text'; give 'text' too, or remove it")
        return self

    @property
    def seconds(self) -> float | None:
        """Length of the run in seconds, or None if it is given in steps."""
        return None if self.steps is not None else 60.0 * (self.minutes or DEFAULT_MINUTES)


def text_facts(config: TrainingConfig) -> dict[str, str]:
    """Return the settings that say what text a drafter was trained on, for the header of its file."""
    names = ("text", "samples", "sources", "temperature", "seed")
    return {name: without_home(value) for name in names if (value := getattr(config, name)) is not None}


def without_home(value: object) -> str:
    """Return a value as text; of a path in the user's home folder, that is written `~`: weights are passed on."""
    text = str(value)
    try:
        return f"~/{Path(text).relative_to(Path.home()).as_posix()}"
    except (ValueError, RuntimeError):  # it is elsewhere, or the home folder is unknown
        return text


def usage(drafter: str, key: str, path: Path) -> str:
    """Return how a study names a trained drafter: a YAML mapping in one line.

    Args:
        drafter: Name of the drafter.
        key: The setting that takes the path.
        path: The file or folder that was written. Quoted as JSON, so that YAML reads any path.
    """
    return f"{{name: {drafter}, {key}: {json.dumps(str(path), ensure_ascii=False)}}}"
