"""Turn a training checkpoint into the model folder that ships.

Run from the repository root: `python -m recipes.builtin_t5.export --model target`
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformers import AutoTokenizer

from recipes.builtin_pair.architectures import BUILTIN
from recipes.builtin_t5.architectures import FOLDERS, export_role, load_checkpoint, new_model
from recipes.builtin_t5.vocabulary import WORK


def main() -> None:
    """Write the folder of one model from its checkpoint, or untrained for a first test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(FOLDERS), required=True)
    parser.add_argument("--checkpoint", type=Path, help="default: the checkpoint of that model")
    parser.add_argument("--untrained", action="store_true", help="write the initial weights")
    parser.add_argument("--work", type=Path, default=WORK, help="folder with tokenizer, checkpoints")
    parser.add_argument("--out", type=Path, default=BUILTIN, help="parent of the model folders")
    arguments = parser.parse_args()

    if arguments.untrained:
        model = new_model(arguments.model, seed=0)
    else:
        path = arguments.checkpoint or arguments.work / f"{arguments.model}.pt"
        model = load_checkpoint(arguments.model, path)
    tokenizer = AutoTokenizer.from_pretrained(arguments.work / "tokenizer")
    folder = arguments.out / FOLDERS[arguments.model].name
    export_role(arguments.model, model, tokenizer, folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder.name}: {size / 1e6:.1f} MB written")


if __name__ == "__main__":
    main()
