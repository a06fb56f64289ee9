"""Drafts whose tokens are all predicted at once, and the mask token of models that predict them."""

from typing import Any

from torch import Tensor

from specdec_core.interface import DraftRequest, Proposal
from specdec_core.models import LoadedModel

MASK_KEYS = ("pard_token", "ptd_token_id")
"""The keys of config.json that name the mask token of a model, in the order in which vLLM reads them."""

_IMPOSSIBLE = ("\u00ff", "<0xFF>")
"""Tokens of the byte 0xFF, which no text in UTF-8 has: in byte-level vocabularies, and in those with bytes to fall
back on."""


def mask_token_of(loaded: LoadedModel) -> int | None:
    """Return the id of the mask token that a model was trained with; None if its config names none."""
    found = (getattr(loaded.model.config, key, None) for key in MASK_KEYS)
    return next((token for token in found if token is not None), None)


def draw_at_each_depth(request: DraftRequest, logits: Tensor) -> Proposal:
    """Draw a draft from distributions that do not depend on its tokens.

    In a tree, all nodes at a depth are drawn from one distribution.

    Args:
        request: The request.
        logits: `[B, K, V]`, of the tokens at each depth.
    """
    nodes = 1
    for scores in logits.unbind(1):
        if not request.wants_more():
            break
        if request.tree is None:
            request.sample(scores)
        else:
            nodes = request.branch(scores[:, None].expand(-1, nodes, -1)).tokens.shape[1]
    return request.proposal()


def unused_token(tokenizer: Any, count: int) -> int | None:
    """Return a token that no text has; None if there is none, or no tokenizer.

    Args:
        tokenizer: The tokenizer.
        count: Number of tokens: some may have no entry in the tokenizer.
    """
    if tokenizer is None:
        return None
    entries = tokenizer.get_vocab()
    spare = set(range(count)) - set(entries.values())
    if spare:
        return max(spare)
    for piece in _IMPOSSIBLE:
        token = entries.get(piece)
        if token is not None and token not in tokenizer.encode(piece, add_special_tokens=False):
            return int(token)
    return None
