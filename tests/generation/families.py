"""Tiny random models of many families of transformers, built from configs."""

from typing import Any

import torch
import transformers

from specdec_core.testing.harness.tiny_target import random_model
from tests import multimodal
from tests.multimodal import IDS, SIZES, VOCAB

OLD = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128}
N_SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SIDE = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
BOTH_SIDES = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in _SIDE.items()}
# The first token is no padding: M2M100 gives that no position.
SEQ2SEQ = {**BOTH_SIDES, "d_model": 32, "max_position_embeddings": 128, "decoder_start_token_id": 2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
NO_FORCED_END = {"forced_eos_token_id": None}
DECODERS = {
    "bloom": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "codegen": ("CodeGen", {**N_SIZES, "rotary_dim": 4}),
    "cohere": ("Cohere", SIZES),
    "cohere2": ("Cohere2", SIZES | {"sliding_window": 64}),
    "deepseek_v3": (
        "DeepseekV3",
        SIZES
        | {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
        },
    ),
    "falcon_h1": (
        "FalconH1",
        SIZES | {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_chunk_size": 8},
    ),
    "falcon": ("Falcon", OLD | {"alibi": False}),
    "gemma": ("Gemma", SIZES),
    "gemma2": ("Gemma2", SIZES | {"sliding_window": 64}),
    "gemma3_text": ("Gemma3", SIZES | {"sliding_window": 64}),
    "glm": ("Glm", SIZES | {"pad_token_id": 0}),
    "gpt2": ("GPT2", N_SIZES),
    "gpt_neo": (
        "GPTNeo",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    ),
    "gpt_neox": ("GPTNeoX", OLD | {"intermediate_size": 48}),
    "gptj": ("GPTJ", {**N_SIZES, "rotary_dim": 4}),
    "granite": ("Granite", SIZES),
    "helium": ("Helium", SIZES),
    "lfm2": ("Lfm2", SIZES | {"layer_types": ["conv", "full_attention"]}),
    "llama": ("Llama", SIZES),
    "mistral": ("Mistral", SIZES | {"sliding_window": 64}),
    "mixtral": ("Mixtral", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mpt": ("Mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128}),
    "nemotron": ("Nemotron", SIZES),
    "olmo": ("Olmo", SIZES),
    "olmo2": ("Olmo2", SIZES),
    "opt": ("OPT", OLD | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "phi": ("Phi", SIZES),
    "phi3": ("Phi3", SIZES),
    "qwen2": ("Qwen2", SIZES),
    "qwen2_moe": ("Qwen2Moe", SIZES | EXPERTS | {"shared_expert_intermediate_size": 16}),
    "qwen3": ("Qwen3", SIZES),
    "qwen3_next": (
        "Qwen3Next",
        SIZES
        | EXPERTS
        | {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2}
        | {"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    ),
    "qwen3_moe": ("Qwen3Moe", SIZES | EXPERTS),
    "smollm3": ("SmolLM3", SIZES),
    "stablelm": ("StableLm", SIZES),
    "starcoder2": ("Starcoder2", SIZES | {"sliding_window": 64}),
}
ENCODER_DECODERS = {
    "bart": ("Bart", SEQ2SEQ | NO_FORCED_END),
    "blenderbot": ("Blenderbot", SEQ2SEQ),
    "m2m_100": ("M2M100", SEQ2SEQ),
    "marian": ("Marian", SEQ2SEQ | {"decoder_vocab_size": VOCAB}),
    "mbart": ("MBart", SEQ2SEQ | NO_FORCED_END | {"decoder_start_token_id": None}),
    "pegasus": ("Pegasus", SEQ2SEQ),
    "plbart": ("PLBart", SEQ2SEQ | NO_FORCED_END),
    "t5": ("T5", T5),
    "umt5": ("UMT5", T5),
}
CAUSAL_HALVES = ("bart", "blenderbot", "marian", "mbart", "pegasus", "plbart")
"""Families of encoder-decoder models that have a class for the decoder alone."""
MULTIMODAL = ("gemma3", "llava", "mistral3", "qwen2_vl")
FAMILIES = (*DECODERS, *(f"{name}-causal" for name in CAUSAL_HALVES), *MULTIMODAL, *ENCODER_DECODERS)


def build(family: str) -> Any:
    """Build the model of a family, which is far from uniform and has no settings of its own for generation."""
    if family in MULTIMODAL:
        model = multimodal.build(family)
    else:
        name, settings = (DECODERS | ENCODER_DECODERS)[family.removesuffix("-causal")]
        config_name = "Gemma3TextConfig" if family == "gemma3_text" else f"{name}Config"
        config = getattr(transformers, config_name)(**(IDS | settings))
        if family.endswith("-causal"):
            config.is_encoder_decoder, config.is_decoder = False, True
        kinds = (f"{name}ForCausalLM", f"{name}LMHeadModel", f"{name}MTModel", f"{name}ForConditionalGeneration")
        if family in ENCODER_DECODERS:
            kinds = kinds[2:]
        kind = next(found for kind in kinds if (found := getattr(transformers, kind, None)) is not None)
        model = random_model(config, kind=kind)
    model.generation_config.eos_token_id = 1
    return model


def noisy(model: Any) -> Any:
    """Return a copy of a model with other weights, close enough that it drafts some of the right tokens."""
    copy = type(model)(model.config).eval()
    copy.load_state_dict(model.state_dict())
    copy.generation_config = model.generation_config
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for weight in copy.parameters():
            if weight.dim() > 1:
                weight.add_(0.1 * weight.std() * torch.randn_like(weight))
    return copy
