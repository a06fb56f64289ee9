"""Logits of whole sequences for training: without a cache, only at the positions to predict."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from specdec_core.interface import ConfigError
from specdec_core.models import LoadedModel
from specdec_drafters.training.rows import Rows


def row_logits(loaded: LoadedModel, rows: Rows) -> Tensor:
    """Return the logits at the positions to predict, sequence after sequence: `[N, V']`.

    Args:
        loaded: The model; its encoder, if any, reads the sources.
        rows: The sequences, on the model's device. N is the number of positions, V' the size of the logits.
    """
    tokens = embeddable(loaded, rows.tokens[:, :-1])
    wanted = rows.mask[:, 1:]
    if loaded.encoder_decoder:
        assert rows.sources is not None, "an encoder needs sources"
        assert rows.source_mask is not None
        sources = embeddable(loaded, rows.sources)
        mask = rows.source_mask.long()
        out = loaded.model(
            input_ids=sources, attention_mask=mask, decoder_input_ids=tokens, use_cache=False
        ).logits
        logits: Tensor = out[wanted]
        return logits
    # Padding is on the right and attention is causal, so no mask is needed.
    first = int(wanted.any(0).nonzero()[0]) if wanted.any() else 0
    keywords = {"logits_to_keep": tokens.shape[1] - first} if loaded.family.trims_logits and first else {}
    everything: Tensor = loaded.model(input_ids=tokens, use_cache=False, **keywords).logits
    return everything[:, first - tokens.shape[1] :][wanted[:, first:]]


def embeddable(loaded: LoadedModel, tokens: Tensor) -> Tensor:
    """Return the tokens, with 0 for those without an embedding (padding of the other model's vocabulary)."""
    return torch.where(tokens < loaded.vocab_size, tokens, 0)


def same_width(p_logits: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Cut both to the smaller vocabulary, `[N, V]`; the rest is padding."""
    width = min(p_logits.shape[1], logits.shape[1])
    return p_logits[:, :width], logits[:, :width]


def autocast_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """Return the data type of matrix products.

    Args:
        wanted: `float32`, `bfloat16`, or `auto`: bfloat16 if the hardware supports it.
        device: The device.

    Raises:
        ConfigError: torch has no such data type.
    """
    if wanted != "auto":
        found = getattr(torch, wanted, None)
        if not isinstance(found, torch.dtype):
            raise ConfigError(f"unknown dtype {wanted!r}: use auto, float32 or bfloat16.")
        return found
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    # Without hardware support, bfloat16 is slower than float32. These names are not public; if they are missing,
    # use float32.
    has = (getattr(torch.cpu, f"_is_{what}_supported", bool) for what in ("avx512_bf16", "amx_tile"))
    return torch.bfloat16 if device.type == "cpu" and any(ask() for ask in has) else torch.float32


def autocast(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Return the context for matrix products of that data type."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
