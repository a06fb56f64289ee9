"""Settings of the parallel drafter and its trainer. Importing this imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specdec_core.interface import DrafterConfig, ModelSettings
from specdec_drafters.training.config import Retention
from specdec_drafters.transformer.config import TransformerTrainerConfig


class ParallelConfig(DrafterConfig, ModelSettings):
    """A small model that reads mask tokens behind the text, and drafts all tokens in one forward pass.

    The draft model and how to load it: PARD's format, a model of the target's vocabulary whose `config.json` names
    its mask token as `pard_token` or `ptd_token_id`.
    """

    count: Annotated[int, Field(ge=1)] | None = None
    """The most tokens of a draft; by default `pard_depth` in the model's config, if it is there."""

    vllm_method: ClassVar[str | None] = "draft_model"

    def export_vllm(self, folder: Path) -> dict[str, Any]:
        """Copy the model's files, and put its mask token into the vocabulary if it is behind it."""
        from specdec_drafters.common.vllm_model import copy_model
        from specdec_drafters.parallel.export import move_mask_token

        copy_model(self, folder, "parallel")
        move_mask_token(folder, self.model)
        return {"parallel_drafting": True}


class ParallelTrainerConfig(TransformerTrainerConfig):
    """Train a small model that drafts several tokens in one forward pass, from mask tokens behind the text.

    It imitates the target, like `specdec train transformer`, at every depth of a draft. For example, from a draft
    model that exists:

    ```
    specdec train parallel --output my-drafter --model builtin:drafter --samples 100000 --minutes 10
    ```

    After Ctrl-C, the same command with --resume continues.
    """

    depth: Annotated[int, Field(ge=2)] = 8
    """Tokens of the longest draft to train for: one more than the mask tokens."""
    retention: Retention = 0.7
    """The share of the positions of one depth that is trained at the next one (COD, in PARD's paper)."""
