"""Export a training checkpoint to the model folder that ships.

Run from the repository root: `python -m recipes.builtin_t5.export --model target`
"""

from recipes.builtin_pair.export import export_one
from recipes.builtin_t5.architectures import FOLDERS, export_role, new_model
from recipes.builtin_t5.vocabulary import WORK


def main() -> None:
    """Export a model of the pair."""
    export_one(FOLDERS, WORK, new_model, export_role)


if __name__ == "__main__":
    main()
