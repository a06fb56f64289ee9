"""Whether a plugin can do what a run asks of it, as far as its announcement and its settings tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.errors import PluginError
from specdec_core.registry.hookspecs import WORD_FOR_KIND

if TYPE_CHECKING:
    from specdec_core.border import PluginSpec


def check_capabilities(
    spec: PluginSpec,
    *,
    encoder_decoder: bool | None = None,
    batch_size: int | None = None,
    has_tokenizer: bool | None = None,
    has_hidden_states: bool | None = None,
) -> None:
    """Refuse a run that asks of a plugin what it has declared it cannot do.

    Args:
        spec: The plugin as it announced itself.
        encoder_decoder: Whether the target has an encoder; None while that is not known.
        batch_size: How many sequences are decoded together; None while that is not known.
        has_tokenizer: Whether the target comes with a tokenizer; None while that is not known.
        has_hidden_states: Whether the target has hidden states that an output embedding reads; None while that is
            not known.

    Raises:
        PluginError: With the plugin's name, what it lacks and what to do.
    """
    can = spec.capabilities
    reason = None
    if can.max_batch is not None and batch_size is not None and batch_size > can.max_batch:
        reason = (
            f"drafts for at most {can.max_batch} sequence(s) at once, but batch_size is {batch_size}; "
            f"set batch_size to {can.max_batch} or less"
        )
    elif encoder_decoder is True and not can.encoder_decoder:
        reason = "works for decoder-only targets, but this target has an encoder; choose another drafter or target"
    elif encoder_decoder is False and not can.decoder_only:
        reason = "works for encoder-decoder targets, but this target has none; choose another of them"
    elif can.needs_tokenizer and has_tokenizer is False:
        reason = "reads text, but this target comes without a tokenizer; put the tokenizer's files into its folder"
    elif can.needs_hidden_states and has_hidden_states is False:
        reason = (
            "works on hidden states, but this target has no output embedding that reads them; choose another "
            "drafter or target"
        )
    if reason is not None:
        raise PluginError(f"{WORD_FOR_KIND[spec.kind]} {spec.name!r} {reason}.")


def encoder_mismatch(drafter: str, model: str, *, encoder: bool | None, target: bool | None) -> str | None:
    """Return why a model cannot draft for a target: one of them reads a source and the other does not.

    Args:
        drafter: The name of the drafter that brings the model.
        model: What the model is called.
        encoder: Whether it has an encoder; None while that is not known.
        target: Whether the target has one; None while that is not known.

    Returns:
        What is wrong and what to do; None where nothing is, or nothing is known.
    """
    if encoder is None or target is None or encoder == target:
        return None
    if encoder:
        return (
            f"drafter {drafter!r}: {model} has an encoder, which needs a source to read, but the target has none. "
            "Choose a decoder-only model of the target's family."
        )
    return (
        f"drafter {drafter!r}: {model} has no encoder, so it would not read the source that the target answers. "
        "Choose an encoder-decoder model of the target's family, or a drafter without a model of its own: one "
        "that copies from the source, or looks up n-grams."
    )
