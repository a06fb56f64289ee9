"""Tiny random models that take images or sound, built from configs, and prompts with them."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from specdec_core.testing.harness.tiny_target import random_model
from tests import tiny

VOCAB = 40
IMAGE = VOCAB - 1
"""The id of a placeholder."""
IDS = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": False}
SIZES = tiny.SIZES | {"head_dim": 8, "max_position_embeddings": 128}
_TEXT = SIZES | IDS
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_TOWER = {"depth": 1, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2}
_QWEN = _TOWER | {"intermediate_size": 48, "out_hidden_size": 32, "num_position_embeddings": 16}
_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4, "partial_rotary_factor": 1.0}
_AXES = _TEXT | {"rope_parameters": _ROPE}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_WINDOWS = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
_SHARED = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": _WINDOWS["layer_types"] * 2}
_EACH_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB, "global_head_dim": 8}
_POOLED = {"image_size": None, "num_key_value_heads": 2, "head_dim": 16, "pooling_kernel_size": 2}
_SOUND = {"num_mel_bins": 8, "max_source_positions": 8}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llava": ("Llava", {"text_config": _TEXT | {"model_type": "llama"}, "vision_config": _VISION}),
    "mistral3": (
        "Mistral3",
        {
            "text_config": _TEXT | {"model_type": "mistral"},
            "vision_config": _VISION | {"model_type": "pixtral", "patch_size": 7, "head_dim": 16},
        },
    ),
    "gemma3": (
        "Gemma3",
        {"text_config": _TEXT | _WINDOWS, "vision_config": _VISION, "mm_tokens_per_image": 4},
    ),
    "gemma4": (
        "Gemma4",
        {
            "text_config": _TEXT | _WINDOWS | _SHARED | _EACH_LAYER,
            "vision_config": _VISION | _POOLED | {"patch_size": 4, "position_embedding_size": 16},
            "audio_config": None,
        },
    ),
    "qwen2_vl": ("Qwen2VL", {"text_config": _AXES, "vision_config": _TOWER | {"embed_dim": 32, "mlp_ratio": 2}}),
    "qwen2_5_vl": ("Qwen2_5_VL", {"text_config": _AXES, "vision_config": _QWEN | {"window_size": 8}}),
    "qwen3_vl": ("Qwen3VL", {"text_config": _AXES, "vision_config": _QWEN | {"deepstack_visual_indexes": [0]}}),
    "qwen3_5": (
        "Qwen3_5",
        {"text_config": _AXES | _DELTA | {"layer_types": ["linear_attention", "full_attention"]}}
        | {"vision_config": _QWEN},
    ),
    "idefics3": (
        "Idefics3",
        {"text_config": _TEXT | {"model_type": "llama"}, "vision_config": _VISION | {"patch_size": 7}}
        | {"scale_factor": 2},
    ),
    "internvl": (
        "InternVL",
        {
            "text_config": _TEXT | {"model_type": "qwen2"},
            "vision_config": _VISION | {"image_size": [28, 28], "patch_size": [7, 7]},
        },
    ),
    "qwen2_audio": (
        "Qwen2Audio",
        {"text_config": _TEXT | {"model_type": "qwen2"}}
        | {"audio_config": _SOUND | {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2}},
    ),
    "voxtral": (
        "Voxtral",
        {"text_config": _TEXT | {"model_type": "llama"}}
        | {"audio_config": _VISION | _SOUND | {"intermediate_size": 128, "head_dim": 16}},
    ),
}


def build(family: str) -> Any:
    """Build the model of a family, which has no settings of its own for generation."""
    name, settings = FAMILIES[family]
    places = dict.fromkeys(("image_token_id", "image_token_index", "audio_token_id", "audio_token_index"), IMAGE)
    if not family.startswith(("qwen2_audio", "voxtral")):
        places |= {"audio_token_id": 34, "video_token_id": 38, "boi_token_id": 35, "eoi_token_id": 35}
    marks = {"vision_start_token_id": 37, "vision_end_token_id": 36, "tie_word_embeddings": False}
    config = getattr(transformers, f"{name}Config")(**settings, **places, **marks)
    model = random_model(config, kind=getattr(transformers, f"{name}ForConditionalGeneration"))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for weight in model.parameters():
            if weight.dim() > 1 and not weight.any():  # as Gemma 3 makes its projection
                weight.normal_()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


def prompts(family: str, rows: Sequence[Sequence[int]], seed: int = 0) -> dict[str, Any]:
    """Return the arguments of `generate` for rows of ids, padded on the left.

    Args:
        family: One of `FAMILIES`.
        rows: The ids; `IMAGE` stands for an image, or a sound.
        seed: Of the images.
    """
    qwen, width = "vl" in family.split("_") or family == "qwen3_5", 2 if family == "voxtral" else 4
    image = [37, *[IMAGE] * width, 36] if qwen else [IMAGE] * width
    texts = [[token for one in row for token in (image if one == IMAGE else [one])] for row in rows]
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
    given = {"input_ids": ids, "attention_mask": mask}
    if qwen or family == "gemma4":
        given["mm_token_type_ids"] = (ids == IMAGE).long()
    elif family == "gemma3":
        given["token_type_ids"] = (ids == IMAGE).long()
    counts = [list(row).count(IMAGE) for row in rows]
    return given | (_media(family, counts, torch.Generator().manual_seed(seed)) if any(counts) else {})


def _media(family: str, counts: Sequence[int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return what the images of rows are given as."""
    total = sum(counts)
    pixels = 3 * torch.randn(total, 3, 28, 28, generator=generator)
    if family in ("qwen2_audio", "voxtral"):
        return {"input_features": pixels[:, 0, :8, :16]} | (
            {"feature_attention_mask": torch.ones(total, 16, dtype=torch.long)} if family == "qwen2_audio" else {}
        )
    if family == "gemma4":
        places = torch.cartesian_prod(torch.arange(4), torch.arange(4)).flip(1).repeat(total, 1, 1)
        return {"pixel_values": pixels[:, 0, :16].repeat(1, 1, 2)[..., :48] / 3, "image_position_ids": places}
    if family.startswith("qwen"):
        patches = pixels.flatten()[: total * 16 * 96].view(-1, 96) / 3
        return {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, 4, 4]] * total)}
    if family == "idefics3":  # as many images in each row
        split = pixels.split(list(counts))
        return {"pixel_values": torch.nn.utils.rnn.pad_sequence(split, batch_first=True)}
    sizes = {"image_sizes": torch.tensor([[28, 28]] * total)} if family == "mistral3" else {}
    return {"pixel_values": pixels} | sizes
