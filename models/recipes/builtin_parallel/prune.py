"""Write the model that training starts from: some layers of the built-in target, with its tokenizer.

Run from the repository root: `python -m recipes.builtin_parallel.prune --output FOLDER`
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

TARGET = Path(__file__).parents[2] / "specdec_models" / "target"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def prune(layers: list[int], output: Path) -> None:
    """Write the target with some of its layers."""
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    kept = torch.nn.ModuleList(model.model.layers[number] for number in layers)
    for number, layer in enumerate(kept):
        layer.self_attn.layer_idx = number
    model.model.layers = kept
    model.config.num_hidden_layers = len(layers)
    model.save_pretrained(output)
    for name in TOKENIZER:
        shutil.copy(TARGET / name, output)


def main() -> None:
    """Parse the command line and write the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder to write")
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 5, 11], help="numbers of the layers to keep")
    arguments = parser.parse_args()
    prune(arguments.layers, arguments.output)


if __name__ == "__main__":
    main()
