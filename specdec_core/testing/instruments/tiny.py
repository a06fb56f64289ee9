"""Tiny random models, built from configs: nothing is read from a disk or downloaded."""

from __future__ import annotations

from typing import Any

import torch
import transformers

IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": False}
"""What the configs of all tiny models say."""


def gpt2_config(vocab: int, **settings: Any) -> Any:
    """Return the config of a tiny decoder-only model with a vocabulary of this size."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    return transformers.GPT2Config(**(sizes | IDS | {"vocab_size": vocab} | settings))


def t5_config(vocab: int, **settings: Any) -> Any:
    """Return the config of a tiny encoder-decoder model with a vocabulary of this size."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    return transformers.T5Config(**(sizes | IDS | {"vocab_size": vocab} | settings))


def random_model(config: Any, seed: int = 0, sharpness: float = 4.0, kind: Any = None) -> Any:
    """Build a random model whose next-token distribution is far from uniform.

    Torch's own random numbers go on afterwards as if nothing had been drawn.

    Args:
        config: A Hugging Face config.
        seed: Of the weights.
        sharpness: Factor on the output weights; fresh models are nearly uniform, which would hide errors.
        kind: The model's class; by default the one that the library knows for a causal or sequence-to-sequence
            model with this config.
    """
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (kind(config) if kind else auto.from_config(config)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.mul_(3.0 if "norm" not in name else 1.0)
        head = model.get_output_embeddings()
        if head is not None:
            head.weight.mul_(sharpness / (head.weight.std() * 32**0.5))
    return model
