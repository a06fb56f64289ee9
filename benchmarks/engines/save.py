"""Save the built-in pair, the target inflated in one width, as ordinary checkpoints that every engine can convert.

python benchmarks/engines/save.py FOLDER --layers 17 --width 8448
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_core.models import LoadedModel, load_model


def main() -> None:
    """Save both models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, required=True, help="layers of the target")
    parser.add_argument("--width", type=int, required=True, help="feed-forward size of each")
    options = parser.parse_args()
    target = load_model("builtin:target")
    save(target, inflated(target.model, options.layers, options.width), options.folder / "target")
    drafter = load_model("builtin:drafter")
    save(drafter, drafter.model, options.folder / "drafter")


@torch.no_grad()
def inflated(model: Any, layers: int, width: int) -> LlamaForCausalLM:
    """Return a larger Llama with the same output, whose layers all have the same shapes.

    `specdec_core.models.inflate` gives only the added layers another width, which no config of transformers
    describes. Here the feed-forward parts of all layers grow: by random rows of `gate_proj` and `up_proj`, and
    columns of zeros of `down_proj`. Added layers have zeros in `o_proj` and `down_proj`.

    Args:
        model: A Llama.
        layers: Layers of the result, at least as many as the model has.
        width: Feed-forward size of each, at least the model's.
    """
    if layers < model.config.num_hidden_layers or width < model.config.intermediate_size:
        raise SystemExit(
            f"The target has {model.config.num_hidden_layers} layers with a feed-forward size of "
            f"{model.config.intermediate_size}: give --layers and --width that are not smaller."
        )
    torch.manual_seed(0)
    shape = {"num_hidden_layers": layers, "intermediate_size": width}
    larger = LlamaForCausalLM(LlamaConfig.from_dict(model.config.to_dict() | shape)).eval()
    weights = model.state_dict()
    for name, weight in larger.state_dict().items():
        if name not in weights and name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
        elif name in weights:
            if name.endswith("down_proj.weight"):
                weight.zero_()
            weight[tuple(slice(size) for size in weights[name].shape)] = weights[name]
    ids = torch.arange(5, 25)[None]
    torch.testing.assert_close(larger(ids).logits, model(ids).logits, rtol=1e-3, atol=1e-3)
    return larger


def save(loaded: LoadedModel, model: Any, folder: Path) -> None:
    """Save a model and its tokenizer so that transformers 4, with which some engines convert, reads them too."""
    model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    edit(folder / "config.json", rope_theta=model.config.rope_parameters["rope_theta"], pad_token_id=0)
    edit(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


def edit(path: Path, **values: Any) -> None:
    """Set values in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
