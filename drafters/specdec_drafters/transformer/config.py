"""Settings of the transformer drafter and its trainer. Importing this imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from specdec_core.interface import DrafterConfig, ModelSettings
from specdec_drafters.training.config import TrainingConfig


class TransformerConfig(DrafterConfig, ModelSettings):
    """A smaller Hugging Face model with the target's vocabulary.

    The draft model and how to load it; its vocabulary must be the target's.
    """

    vllm_method: ClassVar[str | None] = "draft_model"

    def export_vllm(self, folder: Path) -> dict[str, Any]:
        """Copy the model's files."""
        from specdec_drafters.common.vllm_model import copy_model

        copy_model(self, folder, "transformer")
        return {}


class TransformerTrainerConfig(TrainingConfig):
    """Train a small model to imitate the target: an existing one, or a new one of the given size.

    For example, a new one, on a text and on the target's continuations of its pieces:

    ```
    specdec train transformer --output my-drafter --text builtin:stdlib --samples 100000 --minutes 10
    ```

    After Ctrl-C, the same command with --resume continues.
    """

    model: Annotated[str, Field(min_length=1)] | None = None
    """The model to start from: a folder, a hub name, or `builtin:drafter`; by default a new one."""
    layers: Annotated[int, Field(ge=1)] | None = None
    """Layers of a new model (in its encoder and in its decoder); 2 by default."""
    width: Annotated[int, Field(ge=2)] | None = None
    """Hidden size of a new model; 128 by default."""
    heads: Annotated[int, Field(ge=1)] | None = None
    """Attention heads of a new model; by default one per 64 of its width."""
    saved_as: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of the saved weights."""

    @model_validator(mode="after")
    def _check_start(self) -> TransformerTrainerConfig:
        sizes = {"layers": self.layers, "width": self.width, "heads": self.heads}
        given = [name for name, value in sizes.items() if value is not None]
        if self.model is not None and given:
            raise ValueError(
                f"'model' starts from an existing model, whose size is fixed: remove 'model' or "
                f"{' and '.join(map(repr, given))}"
            )
        width, heads = self.sizes[1:]
        if width % heads or (width // heads) % 2:
            raise ValueError(
                f"a width of {width} cannot be divided among {heads} heads of even size; give a width that is a "
                f"multiple of {2 * heads}, or another number of 'heads'"
            )
        return self

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Layers, width and heads of a new model."""
        width = self.width or 128
        return self.layers or 2, width, self.heads or max(1, width // 64)
