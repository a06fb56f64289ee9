"""Tiny random models of each family, built from configs. Nothing is downloaded."""

from typing import Any

import torch
import transformers

from specdec_core.testing.harness.tiny_target import IDS, gpt2_config, random_model, t5_config

DECODER_ONLY = ("gpt2", "llama", "qwen3", "mistral", "gemma3")
ENCODER_DECODER = ("t5", "bart")
FAMILIES = DECODER_ONLY + ENCODER_DECODER

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_ROPE = SIZES | {"head_dim": 8}

_SIDE = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
BOTH_SIDES = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in _SIDE.items()}
"""Sizes of the encoder and the decoder, in the form of BART's config."""


def _config(family: str, vocab: int, **settings: Any) -> Any:
    if family in ("gpt2", "t5"):
        return {"gpt2": gpt2_config, "t5": t5_config}[family](vocab, **settings)
    ids = {**IDS, "vocab_size": vocab, **settings}
    if family == "llama":
        return transformers.LlamaConfig(**(_ROPE | ids))
    if family == "qwen3":
        return transformers.Qwen3Config(**(_ROPE | ids))
    if family == "mistral":
        return transformers.MistralConfig(**_ROPE, sliding_window=5, **ids)
    if family == "gemma3":
        kinds = ["sliding_attention", "full_attention"]
        return transformers.Gemma3TextConfig(**_ROPE, sliding_window=5, layer_types=kinds, **ids)
    if family == "bart":
        return transformers.BartConfig(
            d_model=32,
            max_position_embeddings=256,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            **BOTH_SIDES,
            **ids,
        )
    if family == "mamba":
        return transformers.MambaConfig(hidden_size=32, state_size=4, num_hidden_layers=2, **ids)
    raise ValueError(family)


_CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "mamba": "MambaForCausalLM",
}


def tiny_model(family: str, vocab: int = 40, seed: int = 0, sharpness: float = 4.0, **settings: Any) -> Any:
    """Build a random model whose next-token distribution is far from uniform.

    Args:
        family: One of the names above.
        vocab: Number of tokens.
        seed: Of the weights.
        sharpness: Factor on the output weights. Fresh models are nearly uniform, which would hide errors.
        settings: Further settings of its config.
    """
    return random_model(
        _config(family, vocab, **settings), seed, sharpness, getattr(transformers, _CLASSES[family])
    )


def generated(model: Any, prompt: list[int], count: int, **settings: Any) -> list[int]:
    """Return the tokens of the model's own greedy `generate` after a prompt, or for a source."""
    # Offloaded weights are on no device, which `model.device` would say.
    ids = torch.tensor([prompt], device=model.get_output_embeddings().weight.device)
    settings = {"attention_mask": torch.ones_like(ids), "do_sample": False, **settings}
    tokens = model.generate(ids, max_new_tokens=count, **settings)
    return tokens[0, 1 if model.config.is_encoder_decoder else len(prompt) :].tolist()
