"""Test an unknown model family when it is loaded: cached, ragged and rolled-back passes against uncached ones.

A wrong mask or position raises no error. It changes the logits, and decoding would silently be inexact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_core.interface.errors import ModelError
from specdec_core.models.device import inference_only
from specdec_core.models.loaded import TESTED_ATTENTION, LoadedModel, attention_of
from specdec_core.models.session import ModelSession

TESTED_FAMILIES = frozenset({"gpt2", "llama", "qwen3", "mistral", "gemma3_text", "t5", "bart"})
"""Values of `model_type` that the test suite compares with uncached forward passes."""

_TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-6}
_HALF_TOLERANCE = 0.06


def probe_model(loaded: LoadedModel) -> LoadedModel:
    """Return a model that is known to decode exactly.

    Args:
        loaded: A model of any family. One of `TESTED_FAMILIES` as the tests have it (not quantized, on one device,
            with torch's attention or eager) is returned unchanged. If ragged forward passes give wrong logits, the
            result runs sequences at different positions one by one.

    Raises:
        ModelError: Cached forward passes fail or give wrong logits either way.
    """
    if loaded.model.config.model_type in TESTED_FAMILIES and not _unusual(loaded):
        return loaded
    reason = _difference(loaded)
    if reason is None:
        return loaded
    if loaded.family.ragged and _difference(loaded.row_by_row()) is None:
        return loaded.row_by_row()
    kind = ", ".join([f"model_type {loaded.model.config.model_type!r}", *_unusual(loaded)])
    raise ModelError(
        f"{loaded.name} ({kind}): after its cache is rolled back, its "
        f"logits are not those of an uncached forward pass ({reason}), so decoding would not be exact. Tested "
        f"families: {', '.join(sorted(TESTED_FAMILIES))}."
    )


def _unusual(loaded: LoadedModel) -> list[str]:
    """Return how a model was loaded, where that may change what its family does."""
    attention = attention_of(loaded.model)
    found = {
        f"attention {attention}": attention not in TESTED_ATTENTION,
        "quantized": loaded.quantized,
        "spread over devices": loaded.spread,
    }
    return [what for what, present in found.items() if present]


def _difference(loaded: LoadedModel) -> str | None:
    """Decode two sequences with rejections; return how the logits are wrong, or None if they are right."""
    try:
        return _compare_with_uncached(loaded)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"


def _compare_with_uncached(loaded: LoadedModel) -> str | None:
    sources = [[5, 6, 7, 8], [9, 10]] if loaded.encoder_decoder else None
    start = loaded.start_id
    rows = [[3, 4, 5, 6, 7], [8, 9]] if start is None else [[start], [start]]
    rows = [[token % loaded.vocab_size for token in row] for row in rows]
    draft = torch.tensor([[11, 12, 13], [14, 15, 16]]) % loaded.vocab_size
    session = ModelSession(loaded, 2, 16, sources)
    session.forward(rows, draft, (3, 1))
    session.rollback([len(rows[0]) + 1, len(rows[1])])
    committed = [rows[0] + [int(draft[0, 0]), 2], rows[1] + [2]]
    logits = session.forward([[2], [2]], draft[:, 1:], (2, 1))
    for row, drafted in enumerate((2, 1)):
        tokens = committed[row] + draft[row, 1 : 1 + drafted].tolist()
        expected = uncached_logits(loaded, tokens, sources[row] if sources else None)
        error = (logits[row, drafted].float() - expected.float()).abs().max() / expected.float().abs().max()
        # Quantized products round to half precision whatever the dtype of the logits.
        tolerance = _HALF_TOLERANCE if loaded.quantized else _TOLERANCE.get(logits.dtype, _HALF_TOLERANCE)
        if not error <= tolerance:
            return f"relative error {float(error):.1e}, tolerance {tolerance:.0e}"
    return None


@inference_only
def uncached_logits(loaded: LoadedModel, tokens: Sequence[int], source: Sequence[int] | None = None) -> Tensor:
    """Return the logits after the last token, `[V']`, from a forward pass without a cache.

    Args:
        loaded: The model.
        tokens: Input ids, of the decoder for an encoder-decoder model.
        source: Input ids of the encoder, for an encoder-decoder model.
    """
    ids = torch.tensor([list(tokens)], device=loaded.device)
    if source is None:
        logits = loaded.model(input_ids=ids, use_cache=False).logits
    else:
        source_ids = torch.tensor([list(source)], device=loaded.device)
        logits = loaded.model(input_ids=source_ids, decoder_input_ids=ids, use_cache=False).logits
    last: Tensor = logits[0, -1]
    return last
