"""Export a training checkpoint to the model folder that ships.

Run from the repository root: `python -m recipes.builtin_t5.export --model target`
"""

from recipes.builtin_pair.export import export_one
from recipes.builtin_t5.architectures import FOLDERS, PARALLEL_FOLDER, export_role, new_model
from recipes.builtin_t5.vocabulary import WORK


def main() -> None:
    """Export a model of the pair, or the parallel drafter."""
    export_one({**FOLDERS, "parallel": PARALLEL_FOLDER}, WORK, new_model, export_role)


if __name__ == "__main__":
    main()
