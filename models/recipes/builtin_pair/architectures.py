"""The architecture of the target, and the export to model folders."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from recipes.builtin_pair.vocabulary import MAX_POSITIONS, VOCABULARY_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

Model = TypeVar("Model", bound=PreTrainedModel)

BUILTIN = Path(__file__).parents[2] / "specdec_models"
FOLDERS = {"target": BUILTIN / "target", "drafter": BUILTIN / "drafter"}
TRAINED_LENGTH = 512
END_OF_TEXT_ID = 0

SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
}


def new_model(seed: int) -> LlamaForCausalLM:
    """Return the untrained target, initialized from `seed`."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        **SHAPE,
    )
    model = LlamaForCausalLM(config)
    # Scale down the projections that write to the residual stream, as GPT-2 does.
    shrink = (2 * config.num_hidden_layers) ** -0.5
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(shrink)
    return model


def load_weights(model: Model, path: Path) -> Model:
    """Load the weights of a checkpoint into a model, and set it to evaluation mode."""
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    return model.eval()


def count_parameters(model: torch.nn.Module) -> int:
    """Return the number of parameters. Tied weights count once."""
    return sum(weight.numel() for weight in model.parameters())


def write_portable_tokenizer_class(path: Path) -> None:
    """Write a tokenizer class that every release of transformers knows."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("backend", "is_local", "local_files_only"):
        config.pop(key, None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def export(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    finish: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write a model in half precision and its tokenizer to a folder.

    The folder is written under a temporary name, passed to `finish`, and renamed, so that a reader never sees an
    incomplete one. An existing model card is copied.
    """
    temporary = folder.with_name(f".{folder.name}.new")
    old = folder.with_name(f".{folder.name}.old")
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    copy.deepcopy(model).to(torch.float16).save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    write_portable_tokenizer_class(temporary / "tokenizer_config.json")
    finish(temporary)
    for path in temporary.iterdir():
        path.chmod(0o644)
    if (folder / "README.md").exists():
        shutil.copy(folder / "README.md", temporary)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
