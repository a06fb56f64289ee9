"""The architectures of target and drafters, those of T5 v1.1, and the export to model folders.

The drafter is the target with one of its five decoder layers. The time of a forward pass of a small decoder grows
with its layers, so this keeps the cost coefficient c low. Encoders run once per text.

References:
    Raffel et al. 2020, arXiv 1910.10683 (T5); Shazeer 2020, arXiv 2002.05202 (the gated GELU of v1.1);
    Kasai et al. 2021, arXiv 2006.10369 (deep encoders, shallow decoders); Gandhi et al. 2023, arXiv 2311.00430
    (a drafter with the target's encoder and fewer decoder layers).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from recipes.builtin_pair.architectures import BUILTIN, export, load_weights
from recipes.builtin_t5.vocabulary import END_ID, PAD_ID, VOCABULARY_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast

FOLDERS = {"target": BUILTIN / "t5-target", "drafter": BUILTIN / "t5-drafter"}

# No decoder may be deeper than its encoder: transformers 5.23 makes the cache of `generate` as deep as the
# encoder.
TARGET: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "d_model": 256,
    "d_kv": 64,
    "num_heads": 4,
    "d_ff": 384,
    "num_layers": 5,
    "num_decoder_layers": 5,
    "tie_word_embeddings": False,
}
SHAPES = {
    "target": TARGET,
    "drafter": {**TARGET, "num_decoder_layers": 1},
}


def new_model(role: str, seed: int, dropout: float = 0.0) -> T5ForConditionalGeneration:
    """Return an untrained model, initialized from `seed` as transformers does.

    Except for an untied output embedding, which is initialized to the scale of a tied one. With the default,
    sixteen times as large, the loss would start at 200.
    """
    torch.manual_seed(seed)
    config = T5Config(
        feed_forward_proj="gated-gelu",
        dropout_rate=dropout,
        pad_token_id=PAD_ID,
        eos_token_id=END_ID,
        decoder_start_token_id=PAD_ID,
        **SHAPES[role],
    )
    model = T5ForConditionalGeneration(config)
    if not SHAPES[role]["tie_word_embeddings"]:
        # transformers ties every T5 that it creates from a config, whatever `tie_word_embeddings` is.
        head = torch.empty(config.vocab_size, config.d_model)
        model.lm_head.weight = nn.Parameter(head.normal_(std=config.d_model**-0.5))
    return model


def shortened(target: T5ForConditionalGeneration) -> T5ForConditionalGeneration:
    """Return an untrained drafter: a copy of the target's encoder, embeddings, and first decoder layer."""
    model, weights = new_model("drafter", seed=0), target.state_dict()
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model


OF_TARGET = ("encoder", "shared", "decoder.embed_tokens", "lm_head")
"""Modules of the drafter whose weights are the target's, and not in its folder."""


def load_pair(folders: Mapping[str, Path]) -> dict[str, T5ForConditionalGeneration]:
    """Load the shipped pair in float32, in evaluation mode."""
    target = T5ForConditionalGeneration.from_pretrained(folders["target"], dtype=torch.float32).eval()
    drafter = shortened(target).eval()
    drafter.load_state_dict(load_file(folders["drafter"] / "model.safetensors"), strict=False)
    return {"target": target, "drafter": drafter}


def load_checkpoint(role: str, path: Path) -> T5ForConditionalGeneration:
    """Load a trained model from its checkpoint, in evaluation mode."""
    return load_weights(new_model(role, seed=0), path)


def load_target(work: Path, checkpoint: Path | None = None) -> T5ForConditionalGeneration:
    """Load the target, in evaluation mode.

    Args:
        work: A folder that may have its checkpoint. If not, it is the one that ships.
        checkpoint: Its checkpoint, if that is elsewhere.
    """
    if checkpoint is None and not (work / "target.pt").exists():
        return T5ForConditionalGeneration.from_pretrained(FOLDERS["target"], dtype=torch.float32).eval()
    return load_checkpoint("target", checkpoint or work / "target.pt")


def write_tied(folder: Path, tied: bool) -> None:
    """Correct `tie_word_embeddings` in a saved config; transformers writes true for every T5."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tie_word_embeddings"] = tied
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def keep_decoder(folder: Path) -> None:
    """Take what is the target's out of the folder of a drafter: modules and tokenizer."""
    weights = load_file(folder / "model.safetensors")
    left = tuple(f"{module}." for module in OF_TARGET)
    kept = {name: weight.clone() for name, weight in weights.items() if not name.startswith(left)}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    config = {**json.loads(path.read_text(encoding="utf-8")), "modules_of_target": OF_TARGET}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for tokenizer in folder.glob("tokenizer*"):
        tokenizer.unlink()


def export_role(
    role: str, model: T5ForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Write a model folder; see `recipes.builtin_pair.architectures.export`."""

    def finish(path: Path) -> None:
        write_tied(path, SHAPES[role]["tie_word_embeddings"])
        if role == "drafter":
            keep_decoder(path)

    export(model, tokenizer, folder, finish)
