"""Settings of the eagle3 drafter and its trainer. Importing this imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from specdec_core.interface import DrafterConfig
from specdec_drafters.training.config import Retention, TrainingConfig


class Eagle3Config(DrafterConfig):
    """An EAGLE-3 head from a speculators checkpoint, on the hidden states of the target's layers.

    The head to draft with.
    """

    needs_hidden_states: ClassVar[bool] = True

    model: Annotated[str, Field(min_length=1)]
    """An EAGLE-3 head for this target: a folder, a hub name, or `builtin:eagle3`."""

    vllm_method: ClassVar[str | None] = "eagle3"

    def export_vllm(self, folder: Path) -> dict[str, Any]:
        """Write the head, with the keys of config.json that vLLM reads."""
        from specdec_drafters.eagle3.checkpoint import write_for_vllm

        return write_for_vllm(self.model, folder)


class Eagle3TrainerConfig(TrainingConfig):
    """Train an EAGLE-3 head for a target, in the format that speculators and vLLM read. The target is frozen.

    For the built-in target, this takes about half an hour:

    ```
    specdec train eagle3 --text builtin:stdlib --samples 100000 --minutes 25 --output eagle3
    ```
    """

    aux_layers: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Layers of the target that the head reads, numbered as in `hidden_states`; by default 2, half their number,
    and their number less 3."""
    draft_vocab: Annotated[int, Field(ge=1)] | None = None
    """Number of most frequent tokens that the head can draft; by default at most 32000."""
    unrolled: Annotated[int, Field(ge=1)] = 4
    """Draft tokens to train at each position."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Weight of a draft token's loss over the previous one's; not with `parallel`."""
    parallel: bool = False
    """Train a P-EAGLE head, which drafts all tokens in one forward pass."""
    retention: Retention = 0.7
    """With `parallel`, the share of the positions of one depth that is trained at the next one."""
    loss: Literal["kl", "tv", "kl-then-tv"] = "kl-then-tv"
    """KL(p || q), total variation, or KL first."""
    saved_as: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Data type of the saved weights."""
    save_embeddings: bool = True
    """Save the target's input embeddings, too; without them, vLLM takes the target's."""

    @model_validator(mode="after")
    def _check_parallel(self) -> Eagle3TrainerConfig:
        given = self.model_fields_set
        if self.parallel and "decay" in given:
            raise ValueError("'decay' weights the tokens of a draft that is unrolled; remove it, or 'parallel'")
        if not self.parallel and "retention" in given:
            raise ValueError("'retention' is for heads that draft in one pass; add 'parallel', or remove it")
        if self.parallel and self.unrolled < 2:
            raise ValueError("'parallel' drafts several tokens in one pass; give 'unrolled' at least 2")
        return self
