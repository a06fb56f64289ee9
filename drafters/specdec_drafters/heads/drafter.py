"""The heads drafter: k tokens at once, from the target's last hidden state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from specdec_core.interface import (
    LAST_HIDDEN,
    Drafter,
    DraftRequest,
    DraftSession,
    ModelError,
    Proposal,
    SessionInfo,
    TargetFeatures,
    TargetInfo,
)
from specdec_core.models import moved
from specdec_drafters.common.parallel_draft import draw_at_each_depth
from specdec_drafters.heads.config import HeadsConfig
from specdec_drafters.heads.file import HEADS_FILE, HeadsCard, read_heads
from specdec_drafters.heads.model import head_logits

if TYPE_CHECKING:
    from pathlib import Path


class HeadsDrafter(Drafter):
    """Drafts k tokens at once: head i reads the target's last hidden state and predicts i tokens ahead.

    After x_1 ... x_n the target has read all tokens but x_n, and its last hidden state h is the one x_n was
    sampled from. Head i predicts x_(n+i) from h and, if trained that way, from x_n. No head sees the tokens of the
    others, so all are computed together. q_i, standardized by the core, is still exactly the distribution that the
    i-th token was sampled from, which is all Algorithm 1 requires. In a tree, head i draws
    all nodes at depth i.

    References:
        Section 6 of arXiv 2211.17192 (non-autoregressive approximation models); Stern, Shazeer and Uszkoreit 2018
        (arXiv 1811.03115).
    """

    hidden_layers = (LAST_HIDDEN,)
    drafts_trees = True

    def __init__(self, config: HeadsConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        if target.features is None:
            raise ModelError(
                "drafter 'heads': this target has no output embedding that heads could use. Choose a drafter that "
                "does not need hidden states."
            )
        path = HEADS_FILE.find(config.model, target.folder)
        heads, card = read_heads(path)
        _check_target(card, path, target, target.features)
        if config.count is not None and config.count > card.shape.heads:
            raise ModelError(
                f"drafter 'heads': count is {config.count}, but {path} holds {card.shape.heads} heads. Lower it, "
                "or train more heads."
            )
        self.card = card
        self.count = config.count or card.shape.heads
        # Some models have more embeddings than logits.
        self._output = target.features.output_embeddings[: target.vocab_size]
        self._input = target.features.input_embeddings if card.shape.reads_token else None
        self._heads = heads.to(self._output.device, self._output.dtype)

    def open(self, session: SessionInfo) -> DraftSession:  # noqa: ARG002  (stateless)
        """Start a batch; nothing is kept between steps."""
        return _HeadsSession(self)

    @torch.inference_mode()
    def logits(self, hidden: Tensor, last: Tensor, count: int) -> Tensor:
        """Return the logits of the first heads.

        Args:
            hidden: `[B, D]`, the input of the target's output embedding when the last tokens were sampled.
            last: `[B]` int64, those tokens.
            count: Number of heads.

        Returns:
            `[B, count, V]`, on the device of the output embedding.
        """
        embedded = None
        if self._input is not None:
            embedded = functional.embedding(moved(last, self._input.device), self._input).to(self._output)
        return head_logits(self._heads(hidden.to(self._output), embedded, count), self._output)


class _HeadsSession(DraftSession):
    def __init__(self, drafter: HeadsDrafter) -> None:
        self._drafter = drafter

    def propose(self, request: DraftRequest) -> Proposal:
        if not request.wants_more():
            return request.proposal()
        count = min(self._drafter.count, max(request.depth))
        last = torch.tensor([row[-1] for row in request.tokens])
        return draw_at_each_depth(request, self._drafter.logits(request.hidden_states[LAST_HIDDEN], last, count))


def _check_target(card: HeadsCard, path: Path, target: TargetInfo, features: TargetFeatures) -> None:
    """Raise a ModelError if the heads were trained for another target."""
    HEADS_FILE.check_target(card, features, path, "heads")
    shape = card.shape
    # The fingerprint implies these; they catch a header written by hand.
    sizes = {
        "hidden size": (shape.hidden_size, features.hidden_size),
        "vocabulary": (card.vocab_size, target.vocab_size),
    }
    if shape.reads_token:
        sizes["input embedding"] = (shape.token_size, features.input_embeddings.shape[1])
    for what, (theirs, ours) in sizes.items():
        if theirs != ours:
            raise ModelError(
                f"drafter 'heads': {path} is for a target with {what} {theirs}; this one's is {ours}. "
                f"{HEADS_FILE.how_to_train}"
            )
