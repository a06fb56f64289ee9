"""Tiny random models built from configs, one of each family: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
import transformers

DECODER_ONLY = ("gpt2", "llama", "qwen3", "mistral", "gemma3")
ENCODER_DECODER = ("t5", "bart")
FAMILIES = DECODER_ONLY + ENCODER_DECODER
RECURRENT = ("mamba", "qwen3_next")

_ROPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}


def _config(family: str, vocab: int, **settings: Any) -> Any:
    ids = {
        "vocab_size": vocab,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        **settings,
    }
    if family == "gpt2":
        return transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **ids)
    if family == "llama":
        return transformers.LlamaConfig(**_ROPE, **ids)
    if family == "qwen3":
        return transformers.Qwen3Config(**_ROPE, **ids)
    if family == "mistral":
        return transformers.MistralConfig(**_ROPE, sliding_window=5, **ids)
    if family == "gemma3":
        kinds = ["sliding_attention", "full_attention"]
        return transformers.Gemma3TextConfig(**_ROPE, sliding_window=5, layer_types=kinds, **ids)
    if family == "t5":
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
        return transformers.T5Config(**sizes, decoder_start_token_id=0, **ids)
    if family == "bart":
        sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in _BART.items()}
        return transformers.BartConfig(
            d_model=32,
            max_position_embeddings=256,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            **sizes,
            **ids,
        )
    if family == "mamba":
        return transformers.MambaConfig(hidden_size=32, state_size=4, num_hidden_layers=2, **ids)
    if family == "qwen3_next":
        kinds = ["linear_attention", "full_attention"]
        return transformers.Qwen3NextConfig(**_ROPE, layer_types=kinds, num_experts=2, **ids)
    raise ValueError(family)


_BART = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}

_CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "mamba": "MambaForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
}


def tiny_model(family: str, vocab: int = 40, seed: int = 0, sharpness: float = 4.0, **settings: Any) -> Any:
    """Build a random model whose next-token distribution is far from uniform.

    Args:
        family: One of the names above.
        vocab: Number of tokens.
        seed: Of the weights.
        sharpness: Factor on the output weights; fresh models are nearly uniform, which would hide errors.
        settings: Others of its config.
    """
    torch.manual_seed(seed)
    model = getattr(transformers, _CLASSES[family])(_config(family, vocab, **settings)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.mul_(3.0 if "norm" not in name else 1.0)
        head = model.get_output_embeddings()
        if head is not None:
            head.weight.mul_(sharpness / (head.weight.std() * 32**0.5))
    return model
