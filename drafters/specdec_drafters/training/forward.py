"""Logits of whole rows at once, as training wants them: no cache, only positions that count."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from specdec_core.errors import ConfigError
from specdec_core.models import LoadedModel
from specdec_drafters.training.rows import Rows


def row_logits(loaded: LoadedModel, rows: Rows) -> Tensor:
    """Return the logits that predict the tokens which count, row after row: `[N, V']`.

    Args:
        loaded: The model; with an encoder it reads the sources of the rows, else their tokens alone.
        rows: On the model's device. N is their number of positions, V' the model's own number of logits.
    """
    tokens = _embeddable(loaded, rows.tokens[:, :-1])
    wanted = rows.mask[:, 1:]
    if loaded.encoder_decoder:
        assert rows.sources is not None, "an encoder needs sources"
        assert rows.source_mask is not None
        sources = _embeddable(loaded, rows.sources)
        mask = rows.source_mask.long()
        out = loaded.model(
            input_ids=sources, attention_mask=mask, decoder_input_ids=tokens, use_cache=False
        ).logits
        logits: Tensor = out[wanted]
        return logits
    # Padding lies behind and attention looks back, so that no mask is needed.
    first = int(wanted.any(0).nonzero()[0]) if wanted.any() else 0
    keywords = {"logits_to_keep": tokens.shape[1] - first} if loaded.family.trims_logits and first else {}
    everything: Tensor = loaded.model(input_ids=tokens, use_cache=False, **keywords).logits
    return everything[:, first - tokens.shape[1] :][wanted[:, first:]]


def _embeddable(loaded: LoadedModel, tokens: Tensor) -> Tensor:
    """Return the tokens, those that the model has no embedding for (padding of the other's) as 0."""
    return torch.where(tokens < loaded.vocab_size, tokens, 0)


def alike(p_logits: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return both with as many tokens as the smaller has, `[N, V]`: what is beyond is padding of a vocabulary."""
    width = min(p_logits.shape[1], logits.shape[1])
    return p_logits[:, :width], logits[:, :width]


def autocast_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """Return the number format of matrix products.

    Args:
        wanted: `float32`, `bfloat16`, or `auto`: bfloat16 where the hardware multiplies it.
        device: Where.

    Raises:
        ConfigError: torch knows no such format.
    """
    if wanted != "auto":
        found = getattr(torch, wanted, None)
        if not isinstance(found, torch.dtype):
            raise ConfigError(f"dtype {wanted!r} is not known to torch: use auto, float32 or bfloat16.")
        return found
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    # Where the CPU has no such products, bfloat16 is slower than float32. The names are not public: where they are
    # gone, float32 it is.
    has = (getattr(torch.cpu, f"_is_{what}_supported", bool) for what in ("avx512_bf16", "amx_tile"))
    return torch.bfloat16 if device.type == "cpu" and any(ask() for ask in has) else torch.float32


def autocast(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which matrix products are of that format."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
