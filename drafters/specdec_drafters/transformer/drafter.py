"""The transformer drafter: a smaller model with the target's vocabulary (the paper's approximation model)."""

from __future__ import annotations

from specdec_core.interface import TargetInfo
from specdec_drafters.common.draft_model_loading import load_draft_model
from specdec_drafters.common.model_drafter import ModelDrafter
from specdec_drafters.transformer.config import TransformerConfig


class TransformerDrafter(ModelDrafter):
    """Drafts with any Hugging Face model that uses the target's tokenizer."""

    def __init__(self, config: TransformerConfig, target: TargetInfo) -> None:
        super().__init__(config, target, load_draft_model(config, target, "transformer"))
