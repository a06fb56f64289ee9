"""The heads drafter: k tokens in one go, from the target's own last hidden state."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specdec_core.border import (
    Drafter,
    DraftRequest,
    DraftSession,
    Proposal,
    SessionInfo,
    TargetFeatures,
    TargetInfo,
)
from specdec_core.errors import ModelError
from specdec_core.inference import inference_only
from specdec_drafters.configs import HeadsConfig
from specdec_drafters.heads.file import HOW_TO_TRAIN, HeadsCard, find_heads, read_heads
from specdec_drafters.heads.model import head_logits


class HeadsDrafter(Drafter):
    """Guesses k tokens at once: head i reads the target's last hidden state and guesses i tokens ahead.

    After x_1 ... x_n the target has read all but x_n, and its last hidden state h is the one x_n was drawn
    from. Head i guesses x_(n+i) from h and, where the heads were trained to, from x_n. No head sees what another
    drew, so that all are computed together, and q_i, standardised by the core, is still exactly what the i-th
    token was drawn from: Algorithm 1 asks for no more.

    References:
        Section 6 of arXiv 2211.17192 (non-autoregressive approximation models); Stern, Shazeer and Uszkoreit 2018
        (arXiv 1811.03115).
    """

    Config = HeadsConfig
    needs_hidden_states = True

    def __init__(self, config: HeadsConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        if target.features is None:
            raise ModelError(
                "drafter 'heads': this target has no output embedding that heads could use. Choose a drafter that "
                "does not work on hidden states."
            )
        path = find_heads(config.model, target.folder)
        heads, card = read_heads(path)
        _check_target(card, str(path), target, target.features)
        if config.count is not None and config.count > card.shape.heads:
            raise ModelError(
                f"drafter 'heads': count {config.count} was asked for, but {path} holds {card.shape.heads} heads. "
                f"Ask for at most {card.shape.heads}, or train more."
            )
        self.card = card
        self.count = config.count or card.shape.heads
        # Some models pad their embeddings beyond the logits they return.
        self._output = target.features.output_embeddings[: target.vocab_size]
        self._input = target.features.input_embeddings if card.shape.reads_token else None
        self._heads = heads.to(self._output.device, self._output.dtype)

    def open(self, session: SessionInfo) -> DraftSession:  # noqa: ARG002  (nothing depends on the batch)
        """Begin a batch; nothing is kept between its steps."""
        return _HeadsSession(self)

    @inference_only
    def logits(self, hidden: Tensor, last: Tensor, count: int) -> Tensor:
        """Return the logits of the first heads.

        Args:
            hidden: `[B, D]`, what the target's output embedding read when the last tokens were drawn.
            last: `[B]` int64, those tokens.
            count: How many heads.

        Returns:
            `[B, count, V]`, on the device of the output embedding.
        """
        embedded = None
        if self._input is not None:
            embedded = functional.embedding(last.to(self._input.device), self._input).to(self._output)
        return head_logits(self._heads(hidden.to(self._output), embedded, count), self._output)


class _HeadsSession(DraftSession):
    def __init__(self, drafter: HeadsDrafter) -> None:
        self._drafter = drafter

    def propose(self, request: DraftRequest) -> Proposal:
        # In the first step the target has not read the prompt yet, so that there is nothing to guess from.
        if request.hidden is None or not request.wants_more():
            return request.proposal()
        count = min(self._drafter.count, max(request.budget))
        last = torch.tensor([row[-1] for row in request.tokens])
        logits = self._drafter.logits(request.hidden, last, count)
        for place in range(count):
            if not request.wants_more():
                break
            request.sample(logits[:, place])
        return request.proposal()


def _check_target(card: HeadsCard, path: str, target: TargetInfo, features: TargetFeatures) -> None:
    """Refuse heads that were trained for another target.

    Raises:
        ModelError: With what the file says and what the target is.
    """
    shape, own = card.shape, features.fingerprint()
    if card.fingerprint != own:
        raise ModelError(
            f"drafter 'heads': {path} was trained for another target, {card.target} (fingerprint "
            f"{card.fingerprint}); this one's is {own}. {HOW_TO_TRAIN}"
        )
    # The fingerprint says as much; these would show a file whose header was written by hand.
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
                f"{HOW_TO_TRAIN}"
            )
