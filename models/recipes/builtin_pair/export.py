"""Export a checkpoint of the target to the model folder that ships.

Run from the repository root: `python -m recipes.builtin_pair.export --model target`
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer

from recipes.builtin_pair.architectures import BUILTIN, FOLDERS, export, load_weights, new_model
from recipes.builtin_pair.corpus import WORK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def export_one(
    folders: Mapping[str, Path],
    work: Path,
    make: Callable[[str, int], Any],
    write: Callable[[str, Any, Any, Path], None],
) -> None:
    """Parse the command line and write the folder of one model.

    Args:
        folders: The shipped folder of each role.
        work: Default folder of the tokenizer and checkpoints.
        make: Returns an untrained model, given its role and a seed.
        write: Writes a folder, given role, model, tokenizer and folder.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(folders), required=True)
    parser.add_argument("--checkpoint", type=Path, help="default: the model's checkpoint in --work")
    parser.add_argument("--untrained", action="store_true", help="write the initial weights")
    parser.add_argument("--work", type=Path, default=work, help="folder with tokenizer and checkpoints")
    parser.add_argument("--out", type=Path, default=BUILTIN, help="parent of the model folders")
    arguments = parser.parse_args()

    model = make(arguments.model, 0)
    if not arguments.untrained:
        model = load_weights(model, arguments.checkpoint or arguments.work / f"{arguments.model}.pt")
    tokenizer = AutoTokenizer.from_pretrained(arguments.work / "tokenizer")
    folder = arguments.out / folders[arguments.model].name
    write(arguments.model, model, tokenizer, folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder.name}: {size / 1e6:.1f} MB written")


def main() -> None:
    """Export the target."""
    export_one(
        {"target": FOLDERS["target"]},
        WORK,
        lambda _, seed: new_model(seed),
        lambda _, model, tokenizer, folder: export(model, tokenizer, folder),
    )


if __name__ == "__main__":
    main()
