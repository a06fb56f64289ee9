"""The parallel drafter: a small model predicts all tokens of a draft in one forward pass, at mask tokens."""

from __future__ import annotations

from specdec_core.interface import DraftSession, ModelError, SessionInfo, TargetInfo
from specdec_core.models import LoadedModel
from specdec_drafters.common.draft_model_loading import load_draft_model
from specdec_drafters.common.model_drafter import ModelDrafter, ModelDraftSession
from specdec_drafters.common.parallel_draft import mask_token_of
from specdec_drafters.parallel.config import ParallelConfig

DEPTH_KEY = "pard_depth"
"""The key of config.json with the number of tokens that a model was trained to draft."""


class ParallelDrafter(ModelDrafter):
    """Drafts K tokens with one forward pass of a model.

    After x_1 ... x_n the model reads the tokens that it has not cached yet, and K - 1 mask tokens behind them. Its
    logits at x_n predict the first token of the draft, those at mask i the token after that position. q of a token
    is the distribution at its position, standardized by the core. It depends on the committed text alone, not on
    the other tokens of the draft, and not on how many masks follow. In a tree, all nodes at a depth are drawn at
    one position.

    Mask tokens are never kept in the cache: a rejected draft leaves nothing to undo.

    References:
        An, Bai, Liu, Li and Barsoum 2025 (PARD, arXiv 2504.18583); section 6 of arXiv 2211.17192
        (non-autoregressive approximation models).
    """

    autoregressive = False

    def __init__(self, config: ParallelConfig, target: TargetInfo) -> None:
        super().__init__(config, target, load_draft_model(config, target, "parallel"))
        self.mask_token = checked_mask_token(self.loaded)
        depth = getattr(self.loaded.model.config, DEPTH_KEY, None)
        self.count: int | None = config.count or depth

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch with an empty cache."""
        return ModelDraftSession(self.loaded, session, mask_token=self.mask_token, count=self.count)


def checked_mask_token(loaded: LoadedModel) -> int:
    """Return the id of a model's mask token.

    Raises:
        ModelError: The model has none, or no embedding for it.
    """
    token = mask_token_of(loaded)
    if token is None:
        raise ModelError(
            f"drafter 'parallel': the config.json of {loaded.name} names no mask token (`pard_token` or "
            "`ptd_token_id`), so it was not trained to draft in parallel. Use it with drafter 'transformer', or "
            "train it with `specdec train parallel --model`."
        )
    if not 0 <= token < loaded.vocab_size:
        raise ModelError(
            f"drafter 'parallel': the mask token of {loaded.name} is {token}, but the model has the tokens 0 to "
            f"{loaded.vocab_size - 1}. Correct `pard_token` in its config.json."
        )
    return token
