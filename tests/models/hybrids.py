"""Tiny random models of families with recurrent layers, built from configs."""

from __future__ import annotations

from typing import Any

import torch
import transformers

VOCAB = 40
_IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_DELTA = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MIXED = {"layer_types": ["linear_attention", "full_attention"]}
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
_SHARED = {"shared_expert_intermediate_size": 16}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_CONVOLUTION = {"layer_types": ["conv", "full_attention"]}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5": ("Qwen3_5Text", _DELTA | _MIXED),
    "qwen3_5_moe": ("Qwen3_5MoeText", _DELTA | _MIXED | _EXPERTS | _SHARED),
    "qwen3_next": ("Qwen3Next", _DELTA | _MIXED | _EXPERTS | _SHARED),
    "kimi_linear": (
        "KimiLinear",
        _MIXED
        | {
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "qk_nope_head_dim": 4,
        }
        | {"linear_head_dim": 8, "linear_num_heads": 4, "num_local_experts": 2, "num_experts_per_tok": 1}
        | {"moe_intermediate_size": 16},
    ),
    "nemotron_h": (
        "NemotronH",
        {"layers_block_type": ["mamba", "attention", "mamba", "mlp"], "head_dim": 8, "mamba_num_heads": 4}
        | {"mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8},
    ),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        _MAMBA
        | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 32, "num_local_experts": 2}
        | {"num_experts_per_tok": 1},
    ),
    "falcon_h1": ("FalconH1", _MAMBA | {"mamba_d_ssm": 64}),
    "bamba": ("Bamba", _MAMBA | {"attn_layer_indices": [1]}),
    "zamba2": (
        "Zamba2",
        {"num_key_value_heads": 4, "mamba_d_state": 8, "n_mamba_heads": 4, "mamba_ngroups": 1, "chunk_size": 8}
        | {"hybrid_layer_ids": [1], "layers_block_type": ["mamba", "hybrid"]},
    ),
    "lfm2": ("Lfm2", _CONVOLUTION),
    "lfm2_moe": ("Lfm2Moe", _CONVOLUTION | _EXPERTS | {"num_dense_layers": 1}),
    "lfm3": ("Lfm3", _CONVOLUTION | {"head_dim": 8}),
    "olmo_hybrid": ("OlmoHybrid", _MIXED),
    "mamba2": ("Mamba2", {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2, "chunk_size": 8}),
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("Mamba", {"state_size": 8}),
    "recurrent_gemma": ("RecurrentGemma", {"block_types": ["recurrent", "attention"], "lru_width": 32}),
}
"""Of these, transformers reads several tokens as if no text was before them."""


def hybrid(name: str, vocab: int = VOCAB, sharpness: float = 4.0) -> Any:
    """Build a random model of a family whose next tokens depend on the whole text."""
    architecture, own = (FAMILIES | REFUSED)[name]
    sizes = {key: value for key, value in _SIZES.items() if name != "nemotron_h" or key != "num_hidden_layers"}
    if name in ("mamba", "mamba2"):
        sizes = {key: sizes[key] for key in ("hidden_size", "num_hidden_layers")}
    config = getattr(transformers, f"{architecture}Config")(**{**sizes, **_IDS, **own, "vocab_size": vocab})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(sharpness)
    return model
