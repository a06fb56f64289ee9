"""What may be said about training a drafter's model. Importing this imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from specdec_core.border import TrainerConfig
from specdec_drafters.configs.basic import BUILTIN_TEXTS

DEFAULT_MINUTES = 10.0
"""How long a training takes that says neither minutes nor steps."""
LossName = Literal["ce", "kl", "tv", "kl-then-tv"]
"""What a training makes small; the fields that take it say what each means."""


class TrainingConfig(TrainerConfig):
    """What all trainers that follow gradients take: the text, the length of the work, and its pace."""

    resume: bool = False
    """Go on from the last checkpoint of the same training."""
    text: Annotated[str, Field(min_length=1)] | None = None
    """A UTF-8 text to train on, or `builtin:stdlib`, the library of this Python."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """The most bytes of text read; by default a whole file, or 4 MB of `builtin:stdlib`."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """How many tokens the target writes itself to train on, after pieces of `text` or from `sources` if given."""
    sources: Path | None = None
    """For a target with an encoder: a JSONL file with a source a line, and what it should become where known."""
    held_out: Annotated[int, Field(ge=1)] = 4096
    """How many tokens the target writes to measure alpha on; they are not trained on."""
    length: Annotated[int, Field(ge=2)] = 256
    """Tokens of a row: of a window of text, or of what the target writes in one go, its prompt included."""
    batch_tokens: Annotated[int, Field(ge=1)] = 2048
    """Tokens of a step."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """How many steps to train."""
    minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How long to train, if not a number of steps; 10 by default."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The highest learning rate; by default one that suits what is trained."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The temperature that the pair will decode at: of what the target writes, and of both distributions."""
    seed: Annotated[int, Field(ge=0)] = 0
    """The seed of the initial weights, the order of the rows and what the target writes."""
    evaluate_every: Annotated[int, Field(ge=1)] = 50
    """Steps between two measurements of the held-out alpha."""
    checkpoint_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    """Minutes between two checkpoints."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the matrix products; `auto` is bfloat16 where the hardware multiplies it."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` ...; `auto` is a GPU where there is one."""

    @model_validator(mode="after")
    def _check_budget(self) -> TrainingConfig:
        if self.steps is not None and self.minutes is not None:
            raise ValueError(f"give 'steps' or 'minutes', not both; {self.steps} and {self.minutes:g} were given")
        return self

    @model_validator(mode="after")
    def _check_material(self) -> TrainingConfig:
        if self.text is None and self.sources is None and self.samples is None:
            raise ValueError(
                "say what to train on: 'samples' (tokens that the target writes itself), 'text' (a file, or "
                "builtin:stdlib), or, for a target with an encoder, 'sources' (a JSONL file)"
            )
        if self.text is not None and self.sources is not None:
            raise ValueError("give 'text' or 'sources', not both: a target has an encoder or it has none")
        if self.text is None and self.max_bytes is not None:
            raise ValueError("'max_bytes' limits 'text', which was not given")
        if self.text is not None and self.text.startswith("builtin:") and self.text not in BUILTIN_TEXTS:
            raise ValueError(f"unknown built-in text {self.text!r}. Available: {', '.join(BUILTIN_TEXTS)}.")
        return self

    @property
    def seconds(self) -> float | None:
        """The length of the training in seconds, or None where it is a number of steps."""
        return None if self.steps is not None else 60.0 * (self.minutes or DEFAULT_MINUTES)


class TransformerTrainerConfig(TrainingConfig):
    """Train a small model to say what the target would say: an existing one, or a new one of given sizes.

    For example a new one, on a text and on what the target writes after pieces of it:

    ```
    specdec train transformer --output my-drafter --text builtin:stdlib --samples 100000 --minutes 10
    ```

    After Ctrl-C the same command with --resume goes on.
    """

    model: Annotated[str, Field(min_length=1)] | None = None
    """The model to begin with: a folder, a hub name, or `builtin:drafter`; without it a new one is made."""
    layers: Annotated[int, Field(ge=1)] | None = None
    """Layers of a new model (of its encoder and of its decoder); 2 by default."""
    width: Annotated[int, Field(ge=2)] | None = None
    """Width of a new model, its hidden size; 128 by default."""
    heads: Annotated[int, Field(ge=1)] | None = None
    """Attention heads of a new model; by default one for each 64 of its width."""
    loss: LossName = "kl-then-tv"
    """What is made small: `ce`, the cross-entropy of the text's tokens; `kl`, KL(p || q); `tv`, the total
    variation, which is 1 - alpha; `kl-then-tv`, the one and then more and more of the other."""
    saved_as: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the weights that are written."""

    @model_validator(mode="after")
    def _check_start(self) -> TransformerTrainerConfig:
        sizes = {"layers": self.layers, "width": self.width, "heads": self.heads}
        given = [name for name, value in sizes.items() if value is not None]
        if self.model is not None and given:
            raise ValueError(
                f"'model' begins with a model as it is, so {' and '.join(map(repr, given))} cannot be said too; "
                "leave out one or the other"
            )
        width, heads = self.sizes[1:]
        if width % heads or (width // heads) % 2:
            raise ValueError(
                f"a width of {width} cannot be shared by {heads} heads: each needs an even number of places. "
                f"Give a width that is a multiple of {2 * heads}, or other 'heads'"
            )
        return self

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Layers, width and heads of a new model."""
        width = self.width or 128
        return self.layers or 2, width, self.heads or max(1, width // 64)
