"""Comparison of the vocabularies of a draft model and its target. Importing this does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from specdec_core.interface.errors import ModelError
from specdec_core.models.load.resolve import model_folder

_SHOWN = 3
"""Differing entries listed in a message."""
_FILE = "tokenizer.json"


def vocabulary_mismatch(
    drafter: str, model: str, target: Mapping[int, str], draft: Mapping[int, str], *, whole: bool = True
) -> str | None:
    """Return an error message when the token ids of a draft model mean other tokens than the target's.

    Args:
        drafter: Name of the drafter that uses the draft model.
        model: The draft model, as the user wrote it.
        target: The target's tokens by id.
        draft: The draft model's.
        whole: Whether these are all tokens; otherwise an id that only one of them has is not a difference.
    """
    ids = target.keys() | draft.keys() if whole else target.keys() & draft.keys()
    differing = [id_ for id_ in sorted(ids) if target.get(id_) != draft.get(id_)]
    if not differing:
        return None
    shown = "; ".join(
        f"id {id_}: target {_shown(target, id_)}, drafter {_shown(draft, id_)}" for id_ in differing[:_SHOWN]
    )
    return (
        f"drafter {drafter!r}: the vocabulary of {model} has {len(draft)} entries, the target's {len(target)}, "
        f"and {len(differing)} differ. The first: {shown}. Draft tokens are token ids of the target: choose a "
        "draft model of the target's family. Or wrap it in the drafter 'translated'."
    )


def local_vocabulary(model: str, folder: Path = Path(), subfolder: str | None = None) -> Mapping[int, str] | None:
    """Return the tokens by id that the tokenizer's file of a model lists; those added elsewhere are missing.

    Args:
        model: A folder, a hub name, or a model that ships.
        folder: Base for relative paths.
        subfolder: Folder of the model within `model`.

    Returns:
        The tokens; None where no such file is on this machine, or it cannot be read, which loading it says.
    """
    try:
        found = model_folder(model, folder)
    except ModelError:
        return None
    if found is None:
        return None
    for path in (found / (subfolder or "") / _FILE, found / _FILE):
        if path.is_file():
            about = path.stat()
            return _read(path, about.st_mtime_ns, about.st_size)
    return None


@lru_cache(maxsize=8)
def _read(path: Path, changed: int, size: int) -> Mapping[int, str] | None:  # noqa: ARG001  (of the file that is kept)
    from tokenizers import Tokenizer

    try:
        return {id_: token for token, id_ in Tokenizer.from_file(str(path)).get_vocab().items()}
    except Exception:  # whatever a broken file raises
        return None


def _shown(entries: Mapping[int, str], id_: int) -> str:
    return repr(entries[id_]) if id_ in entries else "nothing"
