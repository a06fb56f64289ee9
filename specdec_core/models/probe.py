"""A family that nobody tested here is tested when it is loaded: cached, ragged and rolled back against fresh.

A wrong mask or position shows as other logits, not as an error, and would make decoding quietly inexact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_core.errors import ModelError
from specdec_core.inference import inference_only
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.session import ModelSession

TESTED = frozenset({"gpt2", "llama", "qwen3", "mistral", "gemma3_text", "t5", "bart"})
"""Values of `model_type` that the project's own tests hold against fresh forwards."""

_TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-6}
_HALF_TOLERANCE = 0.06


def probed(loaded: LoadedModel) -> LoadedModel:
    """Return the model as it can be decoded exactly: as it is, or with a pass a row where rows differ.

    Args:
        loaded: A model of any family; those in `TESTED` come back at once.

    Raises:
        ModelError: Cached forwards differ from fresh ones either way, or fail.
    """
    if loaded.model.config.model_type in TESTED:
        return loaded
    reason = _difference(loaded)
    if reason is None:
        return loaded
    if loaded.family.ragged and _difference(loaded.row_by_row()) is None:
        return loaded.row_by_row()
    raise ModelError(
        f"{loaded.name} (model_type {loaded.model.config.model_type!r}): with a cache that is rolled back, its "
        f"logits are not those of a fresh forward ({reason}), so decoding would not be exact. Tested families: "
        f"{', '.join(sorted(TESTED))}."
    )


def _difference(loaded: LoadedModel) -> str | None:
    """Return what goes wrong when two rows are decoded with rejections, or None."""
    try:
        return _worst(loaded)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"


def _worst(loaded: LoadedModel) -> str | None:
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
    for row, kept in enumerate((2, 1)):
        text = committed[row] + draft[row, 1 : 1 + kept].tolist()
        expected = fresh_logits(loaded, text, sources[row] if sources else None)
        wrong = (logits[row, kept].float() - expected.float()).abs().max() / expected.float().abs().max()
        allowed = _TOLERANCE.get(logits.dtype, _HALF_TOLERANCE)
        if not wrong <= allowed:
            return f"by {float(wrong):.1e} of the largest, {allowed:.0e} is allowed"
    return None


@inference_only
def fresh_logits(loaded: LoadedModel, tokens: Sequence[int], source: Sequence[int] | None = None) -> Tensor:
    """Return the logits after some tokens, `[V']`, from a forward without a cache.

    Args:
        loaded: The model.
        tokens: What it has read; for encoder-decoder models what the decoder has.
        source: What the encoder reads, where there is one.
    """
    ids = torch.tensor([list(tokens)], device=loaded.device)
    if source is None:
        logits = loaded.model(input_ids=ids, use_cache=False).logits
    else:
        given = torch.tensor([list(source)], device=loaded.device)
        logits = loaded.model(input_ids=given, decoder_input_ids=ids, use_cache=False).logits
    last: Tensor = logits[0, -1]
    return last
