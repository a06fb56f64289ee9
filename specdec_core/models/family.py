"""What a model's family allows: which masks its layers need, and whether its state can be cut."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from specdec_core.errors import ModelError
from specdec_core.models.placing import placing_of

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Family:
    """What can be asked of a model's forward.

    Attributes:
        encoder_decoder: It reads a source with an encoder.
        layer_types: The kinds of attention among them.
        window: The sliding window in tokens, where there is one.
        ragged: One forward may hold rows at different positions (else a pass a row is made).
        trims_logits: Its forward takes `logits_to_keep`.
        max_positions: The most tokens it takes, or None.
        float_mask: Its attention wants additive masks (eager attention) and not boolean ones.
    """

    encoder_decoder: bool
    layer_types: frozenset[str]
    window: int | None
    ragged: bool
    trims_logits: bool
    max_positions: int | None
    float_mask: bool


def inspect_family(model: Any) -> Family:
    """Read off a model what its family allows.

    Args:
        model: A Hugging Face model with a language-model head.

    Raises:
        ModelError: Its state cannot be rolled back, so a rejected token could not be taken back.
    """
    config = model.config.get_text_config(decoder=True)
    encoder_decoder = bool(model.config.is_encoder_decoder)
    window = getattr(config, "sliding_window", None)
    kinds = _layer_types(config, window)
    _refuse_states_that_cannot_be_cut(model, config, kinds)
    parameters = inspect.signature(model.forward).parameters
    attention = getattr(config, "_attn_implementation", "eager")
    placed = placing_of(model) is not None if encoder_decoder else "position_ids" in parameters
    return Family(
        encoder_decoder=encoder_decoder,
        layer_types=kinds,
        window=window if SLIDING in kinds else None,
        # Flash kernels take no mask of ours, and rows that cannot be placed would all share one position.
        ragged=placed and attention in ("sdpa", "eager"),
        trims_logits="logits_to_keep" in parameters,
        max_positions=_max_positions(config),
        float_mask=attention == "eager",
    )


def _layer_types(config: Any, window: int | None) -> frozenset[str]:
    types = getattr(config, "layer_types", None)
    if types:
        return frozenset(types)
    return frozenset({SLIDING if window is not None else FULL})


def _refuse_states_that_cannot_be_cut(model: Any, config: Any, kinds: frozenset[str]) -> None:
    other = sorted(kinds - {FULL, SLIDING})
    stateful = bool(getattr(model, "_is_stateful", False)) or not hasattr(config, "num_attention_heads")
    if other or stateful:
        what = f"layers of kind {', '.join(other)}" if other else "a recurrent state"
        raise ModelError(
            f"{type(model).__name__} (model_type {config.model_type!r}) has {what}. Such a state has absorbed the "
            "drafted tokens and cannot be cut back when they are rejected, so decoding would not be exact. "
            f"Use a model whose layers are all {FULL} or {SLIDING}."
        )


def _max_positions(config: Any) -> int | None:
    # Relative biases (T5) reach any length: their n_positions is a habit of training, not a bound.
    if hasattr(config, "relative_attention_num_buckets"):
        return None
    found = getattr(config, "max_position_embeddings", None)
    return int(found) if found is not None else None
