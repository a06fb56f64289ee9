"""Tiny random models of families with recurrent layers, built from configs, and texts of theirs with drafts."""

from functools import partial
from typing import Any

import torch
import transformers

from specdec_core import Decoder
from tests import tiny
from tests.toys import CountingDrafter

VOCAB = 40
_IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
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

_SPARSE = {"num_local_experts": 2, "n_routed_experts": 2} | _EXPERTS
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
}
_INDEXED = {"layer_types": ["linear_attention", "indexed_attention"]}
_INDEX = {"index_n_heads": 16, "index_head_dim": 16, "index_topk": 8}
_VISION = {"hidden_size": 16, "num_heads": 2, "depth": 1, "intermediate_size": 16, "out_hidden_size": 32}
_TOWER = {
    "vision_config": {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
}
_LISTENS = {"audio_config": {"out_hidden_size": 32, "hidden_sizes": (8,) * 4, "depths": (1,) * 4}}
_WINDOWS = {"head_dim": 8, "sliding_window": 6}

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
    "minimax": ("MiniMax", _MIXED | _SPARSE | {"head_dim": 8, "block_size": 8}),
    "bailing_hybrid": ("BailingHybrid", _MIXED | _LATENT | _SPARSE | {"head_dim": 8}),
    "glm5_next": (
        "Glm5Next",
        _INDEXED
        | _LATENT
        | _INDEX
        | _SPARSE
        | {"mlp_layer_types": ["dense", "sparse"], "linear_head_dim": 8, "linear_num_heads": 4}
        | {"qk_rope_head_dim": 0, "index_kpool": 2, "vision_config": _VISION},
    ),
    "qwen4_exp": (
        "Qwen4ExpText",
        _INDEXED
        | _DELTA
        | _EXPERTS
        | _SHARED
        | {"hc_count": 2, "hc_lowrank": 8, "ple_layer_ids": [1], "heads_per_ngram": 2, "ngram_vocab_size_base": 50}
        | {"split_ngram_parts": 1, "make_ngram_vocab_size_divisible_by": 8, "indexer_n_heads": 2}
        | {"indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4, "indexer_compress_ratio": 2},
    ),
    "zaya": ("Zaya", _SPARSE | {"head_dim": 8}),
    "inkling2": ("Inkling2Text", _SPARSE | {"head_dim": 8}),
    "jamba": (
        "Jamba",
        _EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
    ),
    "zamba": (
        "Zamba",
        {"layers_block_type": ["mamba", "hybrid", "hybrid"], "num_hidden_layers": 3, "num_key_value_heads": 4}
        | {"mamba_d_state": 8, "n_mamba_heads": 2, "attention_head_dim": 16, "attention_hidden_size": 64},
    ),
    "mamba": ("Mamba", {"state_size": 8}),
    "falcon_mamba": ("FalconMamba", {"state_size": 8}),
    "rwkv": ("Rwkv", {"context_length": 256}),
    "xlstm": ("xLSTM", {"hidden_size": 128, "num_heads": 2, "chunk_size": 8}),
    "llama4": ("Llama4Text", _SPARSE | {"head_dim": 8, "attention_chunk_size": 8, "intermediate_size_mlp": 48}),
    "deepseek_v32": ("DeepseekV32", _LATENT | _INDEX | _SPARSE | {"first_k_dense_replace": 1}),
    "deepseek_v4": (
        "DeepseekV4",
        _LATENT
        | _INDEX
        | _SPARSE
        | {"head_dim": 16, "o_lora_rank": 16, "o_groups": 2, "sliding_window": 8, "num_hash_layers": 0}
        | {"layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"]},
    ),
    "minimax_m3": (
        "MiniMaxM3VLText",
        _SPARSE
        | _INDEX
        | {"head_dim": 8, "layer_types": ["full_attention", "minimax_m3_sparse"]}
        | {"index_n_heads": 2, "index_block_size": 4, "index_topk_blocks": 2, "index_local_blocks": 1},
    ),
    "mamba2": ("Mamba2", {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2, "chunk_size": 8}),
}
OWN_CACHES = (
    "minimax",
    "glm5_next",
    "qwen4_exp",
    "rwkv",
    "xlstm",
    "llama4",
    "deepseek_v32",
    "deepseek_v4",
    "minimax_m3",
)
"""Of these, the cache is one that the model makes."""
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "recurrent_gemma": ("RecurrentGemma", {"block_types": ["recurrent", "attention"], "lru_width": 32}),
}
"""Of these, states are in the modules."""
ATTENTION: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "gpt_oss": ("GptOss", _SPARSE | {"head_dim": 8, "sliding_window": 6}),
    "gemma4_text": (
        "Gemma4Text",
        {"head_dim": 8, "global_head_dim": 8, "sliding_window": 6, "hidden_size_per_layer_input": 8}
        | {"layer_types": ["sliding_attention", "full_attention"], "vocab_size_per_layer_input": VOCAB},
    ),
    "deepseek_v3": ("DeepseekV3", _LATENT | _SPARSE | {"first_k_dense_replace": 1}),
    "glm_moe_dsa": ("GlmMoeDsa", _LATENT | _INDEX | _SPARSE | {"first_k_dense_replace": 1}),
    "hy_v3": ("HYV3", _SPARSE | {"head_dim": 8}),
    "hy_v4": ("HYV4", _LATENT | _INDEX | _SPARSE | {"head_dim": 8}),
    "axk1": ("AXK1", _LATENT | _SPARSE | {"first_k_dense_replace": 1}),
    "axk2": ("AXK2", _LATENT | _INDEX | _SPARSE | {"first_k_dense_replace": 1}),
    "minimax_m2": ("MiniMaxM2", _SPARSE | {"head_dim": 8}),
    "mimo_v2_flash": ("MiMoV2Flash", _SPARSE | _WINDOWS | {"v_head_dim": 8}),
    "step3p7": ("Step3p7", _SPARSE | _WINDOWS | _TOWER),
    "kimi_k25": ("Kimi_K25", _LATENT | _SPARSE | _TOWER),
    "muse_spark": ("MuseSpark", _SPARSE | _WINDOWS | _TOWER | _LISTENS | {"moe_hidden_size": 16}),
    "lfm2_vl": ("Lfm2Vl", _CONVOLUTION | _TOWER),
    "lfm3_vl": ("Lfm3Vl", _CONVOLUTION | _TOWER | {"head_dim": 8}),
    "inkling_text": ("InklingText", _SPARSE | _WINDOWS),
    "laguna": ("Laguna", _SPARSE | _WINDOWS),
    "cohere2_moe": ("Cohere2Moe", _SPARSE | _WINDOWS),
    "exaone_moe": ("ExaoneMoe", _SPARSE | _WINDOWS),
    "solar_open": ("SolarOpen", _SPARSE),
    "mellum": ("Mellum", _SPARSE),
}
"""Families of which only the table has tests, most without recurrent layers."""
_PURE = ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm")


def hybrid(name: str, vocab: int = VOCAB, sharpness: float = 4.0) -> Any:
    """Build a random model of a family whose next tokens depend on the whole text."""
    architecture, own = (FAMILIES | REFUSED | ATTENTION)[name]
    kept = ("hidden_size", "num_hidden_layers") if name in _PURE else tiny.SIZES
    sizes = {key: tiny.SIZES[key] for key in kept}
    if name == "nemotron_h":
        del sizes["num_hidden_layers"]
    settings = {**sizes, **_IDS, **own, "vocab_size": vocab}
    others = {key: settings.pop(key) for key in ("vision_config", "audio_config") if key in settings}
    settings = {"text_config": settings, **others} if others else settings
    config = getattr(transformers, f"{architecture}Config")(**settings)
    torch.manual_seed(0)
    auto = transformers.AutoModelForImageTextToText if others else transformers.AutoModelForCausalLM
    model = auto.from_config(config).eval()
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings[0].normal_(
            std=float(embeddings.std())
        )  # the vector of padding is zero, and its scores are equal
        for weight in model.parameters():
            if not weight.any():  # as some families begin, and what they scale would have no effect
                weight.normal_(std=0.1)
            if weight.dim() > 1:
                weight.mul_(sharpness)
    return model


PROMPTS = ([5, 9, 11, 30, 21, 22, 7], [3], list(range(2, 36)))
LENGTH = 28
generated = partial(tiny.generated, count=LENGTH, eos_token_id=None)


class Scripted(CountingDrafter):
    """Drafts what plain decoding says, and is wrong at some positions of the text."""

    def __init__(self, texts, right):
        super().__init__(VOCAB)
        self.texts, self.right = texts, right

    def draft(self, tokens, budget):
        text = next((text for text in self.texts if text[: len(tokens)] == list(tokens)), [])
        at = range(len(tokens), min(len(tokens) + budget, len(text)))
        return [text[n] if n * 7 % 10 < self.right * 10 else (text[n] + 1) % VOCAB for n in at]


def scripted(model, right=0.6, prompts=PROMPTS):
    return Scripted([prompt + generated(model, prompt) for prompt in prompts], right)


def texts(loaded, drafter=None, gamma=None, prompts=PROMPTS):
    result = Decoder(loaded, drafter, gamma=gamma, temperature=0, strict=True).generate(
        list(prompts), max_new_tokens=LENGTH, ignore_eos=True
    )
    return [list(row.tokens) for row in result.sequences], result.metrics
