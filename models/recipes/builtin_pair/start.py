"""Write the model that the training of the drafter starts from: the target with its first and its last layer.

Run from the repository root: `python -m recipes.builtin_pair.start`
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.builtin_pair.architectures import FOLDERS
from recipes.builtin_pair.corpus import WORK

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

KEPT = (0, -1)  # layers of the target


def keep_layers(model: LlamaForCausalLM) -> None:
    """Remove all layers but those of `KEPT`."""
    layers = model.model.layers
    model.model.layers = nn.ModuleList(layers[index] for index in KEPT)
    model.config.num_hidden_layers = len(KEPT)


def main() -> None:
    """Write the model with the target's tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=WORK / "start", help="the folder to write")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(FOLDERS["target"])
    keep_layers(model)
    model.save_pretrained(arguments.out)
    AutoTokenizer.from_pretrained(FOLDERS["target"]).save_pretrained(arguments.out)


if __name__ == "__main__":
    main()
