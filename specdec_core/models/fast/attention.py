"""Attention of a few tokens, in C++, for layers with packed weights.

PyTorch's attention is made for long blocks of queries, and where query heads share keys, transformers repeats the
whole cache for it in each pass. `kernels.cpp` reads it where it is, and what it returns for a token does not
depend on the other tokens of the pass.
"""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from specdec_core.models.fast.packed_linear import PackedLinear
from specdec_core.models.fast.products import LANES, supports
from specdec_core.models.fast.static import WIDEST
from specdec_core.models.loaded import LoadedModel


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Attend like transformers' `sdpa_attention_forward`, which runs where this does not apply.

    Args:
        module: The attention layer; only those with packed weights are different.
        query: `[B, H, T, D]`.
        key: `[B, G, S, D]`, where G divides H.
        value: `[B, G, S, D']`.
        attention_mask: `[B, 1 or H, T, S]`, bool (True is seen) or what is added to the scores; None sees all.
        dropout: A probability.
        scaling: Factor of the scores; 1 / sqrt(D) by default.
        is_causal: Whether tokens see no later ones where there is no mask; by default, the module's.
        **keywords: Others of transformers: `position_bias`, `[1 or B, H, T, S]`, is added to the scores. `drafted`
            is the number of last tokens that are a draft: in a long pass, they do not change how the others, which
            PyTorch attends with, are rounded.

    Returns:
        `[B, T, H, D']`, and None.
    """
    width, keys, drafted = query.shape[2], key.shape[2], keywords.pop("drafted", 0)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if drafted and keywords.get("position_bias") is None:
        at, seen, options = width - drafted, keys - drafted, {"dropout": dropout, "scaling": scaling, **keywords}
        known = None if attention_mask is None else attention_mask[:, :, :at, :seen]
        masked = _causal(query, key) if attention_mask is None else attention_mask
        parts = (
            (query[:, :, :at], key[:, :, :seen], value[:, :, :seen], known),
            (query[:, :, at:], key, value, masked[:, :, at:, :keys]),
        )
        return torch.cat([attend(module, *part, is_causal=is_causal, **options)[0] for part in parts], 1), None
    applies = (
        width <= WIDEST
        and any(isinstance(layer, PackedLinear) for layer in module.children())
        and query.dtype == key.dtype == value.dtype
        and query.shape[0] == key.shape[0] == value.shape[0]
        and query.dtype in (torch.float32, torch.bfloat16)
        and supports(query.dtype)
        and query.shape[3] % LANES == value.shape[3] % LANES == 0
        and query.stride(3) == key.stride(3) == value.stride(3) == 1
        and not (dropout or query.requires_grad or keywords.get("cache") or keywords.get("softcap"))
    )
    if not applies:
        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **keywords
        )
        return attended
    mask, bias = attention_mask, keywords.get("position_bias")
    if mask is None and causal and width > 1:
        mask = _causal(query, key)
    if bias is not None and mask is not None:
        bias = bias.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else bias + mask
    mask = mask if bias is None else bias
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    return torch.ops.specdec.attention(query, key, value, mask, scale), None


def rounds_alike(loaded: LoadedModel) -> bool:
    """Return whether a token's logits can be made independent, to the last bit, of the draft in its pass."""
    width = torch.uint8 if loaded.bits == 8 else loaded.model.dtype
    packed = any(isinstance(layer, PackedLinear) for layer in loaded.model.modules())
    if not (packed and loaded.bits in (None, 8) and supports(width)):
        return False
    parameters = signature(loaded.model.forward).parameters.values()
    return any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)


def _causal(query: Tensor, key: Tensor) -> Tensor:
    """Return the mask `[1, 1, T, S]` with which the last T of S tokens see no later ones."""
    width, keys = query.shape[2], key.shape[2]
    return query.new_ones(1, 1, width, keys, dtype=torch.bool).tril(keys - width)


ALL_ATTENTION_FUNCTIONS.register("sdpa", attend)
