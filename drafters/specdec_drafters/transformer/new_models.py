"""New draft models of a given size, with the target's vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from specdec_core.models import LoadedModel, wrap_model

DEFAULT_POSITIONS = 2048


def new_model(target: LoadedModel, layers: int, width: int, heads: int, seed: int) -> LoadedModel:
    """Return an untrained model with the target's vocabulary: a Llama, or a T5 if the target has an encoder.

    Args:
        target: The target.
        layers: Layers of the decoder, and of the encoder.
        width: Hidden size.
        heads: Number of attention heads, which share the width.
        seed: Seed of the weights.
    """
    with torch.random.fork_rng([]):
        # torch.manual_seed would also reseed the generators of all GPUs.
        torch.default_generator.manual_seed(seed)
        make = _t5 if target.encoder_decoder else _llama
        model = make(target, layers, width, heads)
    # Projections into the residual stream start smaller, so that depth does not inflate it (GPT-2).
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_((2 * layers) ** -0.5)
    return wrap_model(model.to(target.device), target.tokenizer, "new model")


def _special(target: LoadedModel) -> dict[str, Any]:
    config = target.model.config.get_text_config(decoder=True)
    ends = list(target.eos_ids)
    return {
        "vocab_size": target.vocab_size,
        "bos_token_id": getattr(config, "bos_token_id", None),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": getattr(config, "pad_token_id", None),
        "tie_word_embeddings": True,
    }


def feed_forward(width: int) -> int:
    """Return the feed-forward size: 8/3 of the width, rounded up to a multiple of 64."""
    return -(-8 * width // (3 * 64)) * 64


def _llama(target: LoadedModel, layers: int, width: int, heads: int) -> Any:
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=feed_forward(width),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=target.family.max_positions or DEFAULT_POSITIONS,
        **_special(target),
    )
    return LlamaForCausalLM(config)


def _t5(target: LoadedModel, layers: int, width: int, heads: int) -> Any:
    config = T5Config(
        d_model=width,
        d_kv=width // heads,
        d_ff=feed_forward(width),
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        dropout_rate=0.0,  # a small model in a short run sees little data twice
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=target.start_id,
        **_special(target),
    )
    return T5ForConditionalGeneration(config)
