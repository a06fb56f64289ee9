"""Tiny targets with an MTP layer of their own, as they are published."""

import copy
import json

import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config
from transformers.modeling_layers import MtpModel

from specdec_core.testing.harness.tiny_target import random_model
from tests.generation.families import DECODERS
from tests.models.hybrids import hybrid

QWEN = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm"}


def described(model):
    """A copy of a model whose config says of its MTP layer what transformers asks for."""
    model, config = copy.copy(model), copy.deepcopy(model.config)
    config.num_mtp_layers = 1
    if getattr(config, "layer_types", None):
        config.mtp_layer_types = ["full_attention"]
    model.config, model._keys_to_ignore_on_load_unexpected = config, [r"^mtp\.", r"^model\.layers\.2\."]
    return model


def published(model, layer, fused, deepseek=False):
    """Return the weights of an MTP layer by the names of its checkpoints, or of DeepSeek's."""
    found = {}
    for name, weight in layer.state_dict().items():
        part, _, rest = name.partition(".")
        if deepseek or model.config.model_type == "deepseek_v3":
            key = "model.layers.2." + {"mtp_block": rest, "post_norm": "shared_head.norm.weight"}.get(part, name)
            found["model.layers.2.shared_head.head.weight"] = model.lm_head.weight.detach().clone()
        else:
            key = f"mtp.layers.0.{rest}" if part == "mtp_block" else f"mtp.{QWEN[part]}.{rest}"
        found |= {key: weight} if fused or "mlp.experts." not in key else single_experts(key, weight)
    return found


def single_experts(key, weight):
    prefix, _, which = key.rpartition(".")
    names = ("gate", "up") if which == "gate_up_proj" else ("down",)
    return {
        f"{prefix}.{number}.{name}_proj.weight": part.contiguous()
        for number, one in enumerate(weight)
        for name, part in zip(names, one.chunk(len(names)), strict=True)
    }


def random_layer(model):
    layer = MtpModel(described(copy.deepcopy(model)), 1).layers[0]  # gives the copy's embeddings new values
    for weight in layer.parameters():
        weight.data.normal_(float(weight.dim() == 1), 0.4)  # those of norms are near 1
    return layer


def write(folder, family, vocab=40, sharpness=4.0, fused=False, deepseek=False, drop=(), config=None, **more):
    """Write a tiny target with an MTP layer, as they are published; return its folder's name."""
    if family == "deepseek_v3":
        model = random_model(DeepseekV3Config(**DECODERS[family][1], vocab_size=vocab), sharpness=sharpness)
    else:
        model = hybrid(family, vocab, sharpness)
    torch.manual_seed(1)
    final = model.get_decoder().norm.weight
    final.data.add_(0.5 * torch.randn_like(final))  # or the states before and after it would be alike
    layer = random_layer(model)
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors, keys = load_file(path), json.loads((folder / "config.json").read_text())
    if "qwen3_5" in family:  # published with images
        tensors = {name.replace("model.", "model.language_model."): weight for name, weight in tensors.items()}
        keys = {"model_type": family, "text_config": keys | {"mtp_num_hidden_layers": 1, **(config or {})}}
        (folder / "config.json").write_text(json.dumps(keys))
    tensors |= published(model, layer, fused, deepseek) | more
    save_file({name: weight for name, weight in tensors.items() if name not in drop}, path, {"format": "pt"})
    return str(folder)
