"""A parallel draft model with as many tokens as its target, which vLLM asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from specdec_core.interface import ConfigError
from specdec_core.models import load_model
from specdec_drafters.common.parallel_draft import MASK_KEYS, unused_token
from specdec_drafters.parallel.drafter import checked_mask_token


@torch.no_grad()
def move_mask_token(folder: Path, name: str) -> None:
    """Move a mask token behind the vocabulary into the place of a token that no text has.

    `specdec train parallel` adds the mask token as the last one. vLLM asks for as many tokens as the target has.
    What the model predicts stays the same: the other token keeps its output embedding.

    Args:
        folder: The folder of the model, which is changed.
        name: The name of the model, for error messages.

    Raises:
        ConfigError: There is no token that no text has.
        ModelError: The model has no mask token, or cannot be loaded.
    """
    keys = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    dtype = keys.get("dtype") or keys.get("torch_dtype") or "float32"
    loaded = replace(load_model(folder, device="cpu", packed=False, dtype=dtype), name=name)
    mask = checked_mask_token(loaded)
    count = loaded.vocab_size - 1
    if mask != count:
        return
    token = unused_token(loaded.tokenizer, count)
    if token is None:
        raise ConfigError(
            f"drafter 'parallel': {name} has its mask token behind the vocabulary, as token {mask}. vLLM asks for "
            f"the target's {count} tokens, and the tokenizer in the folder has none of them that no text "
            "has, in whose place the mask token could be. Export with a byte-level tokenizer in the folder."
        )
    model = loaded.model
    read = model.get_input_embeddings().weight[:count].clone()
    predicted = model.get_output_embeddings().weight[:count].clone()
    read[token] = model.get_input_embeddings().weight[mask]
    model.config.tie_word_embeddings = False
    model.resize_token_embeddings(count, mean_resizing=False)
    model.get_input_embeddings().weight = nn.Parameter(read)
    model.get_output_embeddings().weight = nn.Parameter(predicted)
    for key in MASK_KEYS:
        if hasattr(model.config, key):
            setattr(model.config, key, token)
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    model.save_pretrained(folder)
