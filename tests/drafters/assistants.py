"""Tiny assistants of Gemma 4 and their targets, from configs."""

from contextlib import contextmanager

import pytest
import torch
import transformers
from transformers import AutoConfig

from specdec_core.models import wrap_model
from specdec_core.testing.harness.tiny_target import random_model

V = 40
SLIDING, FULL = "sliding_attention", "full_attention"
SIZES = {
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 5,
    "max_position_embeddings": 256,
    **{"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1},
}
TARGET = {"hidden_size": 32, "num_hidden_layers": 5, "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL]}
SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "layer_types": [SLIDING, SLIDING, FULL]}
NO_INPUTS = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
FAMILIES = {
    "shared": ("gemma4", {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8}),
    "keys-are-values": ("gemma4", {"attention_k_eq_v": True, **NO_INPUTS}),
    "unified": ("gemma4_unified", {}),
}


@contextmanager
def assistants_built():
    """Have transformers 5.23.0 share keys with another model, as other versions do."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (transformers.Gemma4TextConfig, transformers.Gemma4UnifiedTextConfig):
            if hasattr(kind, "kv_sharing_modes"):  # added in 5.23.0
                patch.setattr(kind, "kv_sharing_modes", property(sharing_of(kind.kv_sharing_modes.fget)))
        yield


def sharing_of(own):
    def modes(config):
        kinds = config.layer_types
        if config.num_kv_shared_layers == len(kinds):
            return ["reuse"] * len(kinds)
        last = ["store" if kind not in kinds[n + 1 :] else None for n, kind in enumerate(kinds)]
        return own(config) if config.num_kv_shared_layers else last

    return modes


def target_of(family="shared", vocab=V, sharpness=4.0):
    kind, more = FAMILIES[family]
    inputs = {"vocab_size_per_layer_input": vocab} if kind == "gemma4" else {}
    config = AutoConfig.for_model(f"{kind}_text", vocab_size=vocab, **SIZES, **TARGET, **inputs | more)
    config.tie_word_embeddings = False
    return wrap_model(random_model(config, sharpness=sharpness))


def write(folder, family="shared", vocab=V, **more):
    """Write a random assistant; return its folder's name."""
    kind, _ = FAMILIES[family]
    inputs = NO_INPUTS if kind == "gemma4" else {}
    equal = {"attention_k_eq_v": FAMILIES[family][1].get("attention_k_eq_v", False)} if kind == "gemma4" else {}
    text = AutoConfig.for_model(f"{kind}_text", vocab_size=vocab, **SIZES, **SMALL | inputs | equal)
    config = AutoConfig.for_model(f"{kind}_assistant", text_config=text, **{"backbone_hidden_size": 32} | more)
    model = random_model(config, seed=1, sharpness=2.0)
    if model.masked_embedding is not None:
        model.masked_embedding.token_ordering.copy_(torch.randperm(vocab))
    model.save_pretrained(folder)
    return str(folder)
