"""Comparison of the vocabularies of a draft model and its target. Importing this does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from specdec_core.interface.errors import ModelError
from specdec_core.models.load.resolve import model_folder

_SHOWN = 3
"""Differing entries listed in a message."""
_FEW = 1000
"""Most ids that may be missing or renamed; placeholders for special tokens are up to some hundreds."""
_FILE = "tokenizer.json"


class Vocabulary(NamedTuple):
    """The tokens of a tokenizer."""

    tokens: Mapping[int, str]
    """All tokens by id."""
    added: frozenset[int]
    """Ids of those that were added to the ordinary ones: special tokens, and placeholders for some."""

    @classmethod
    def of(cls, tokenizer: Any) -> Vocabulary:
        """Return that of a tokenizer of transformers."""
        tokens = {id_: token for token, id_ in tokenizer.get_vocab().items()}
        return cls(tokens, frozenset(getattr(tokenizer, "added_tokens_decoder", ())))


def vocabulary_difference(
    drafter: str, model: str, target: Vocabulary, draft: Vocabulary, *, whole: bool = True
) -> str | None:
    """Return a warning when a draft model's vocabulary differs from the target's where few texts notice it.

    A few ids may be missing in one of them, or may have been renamed if one of the names is an added token's.

    Args:
        drafter: Name of the drafter that uses the draft model.
        model: The draft model, as the user wrote it.
        target: The target's tokens.
        draft: The draft model's.
        whole: Whether these are all tokens; otherwise an id that only one of them has is not a difference.

    Raises:
        ModelError: Its token ids mean other tokens; the message has both sizes and the first differing entries.
    """
    (ours, our_added), (theirs, their_added) = target, draft
    ids = ours.keys() | theirs.keys() if whole else ours.keys() & theirs.keys()
    differing = [id_ for id_ in sorted(ids) if ours.get(id_) != theirs.get(id_)]
    if not differing:
        return None
    common = (ours.keys() & theirs.keys()) - our_added - their_added
    wrong = [id_ for id_ in differing if id_ in common] or (differing if len(differing) > _FEW else [])
    shown = "; ".join(
        f"id {id_}: target {_shown(ours, id_)}, drafter {_shown(theirs, id_)}"
        for id_ in (wrong or differing)[:_SHOWN]
    )
    found = (
        f"drafter {drafter!r}: the vocabulary of {model} has {len(theirs)} entries, the target's {len(ours)}, "
        f"and {len(wrong or differing)} differ. The first: {shown}."
    )
    if wrong:
        raise ModelError(
            f"{found} Draft tokens are token ids of the target: choose a draft model of the target's family. Or "
            "wrap it in the drafter 'translated'."
        )
    return f"{found} They are added or missing tokens, and few drafts may be accepted in texts that have them."


def local_vocabulary(model: str, folder: Path = Path(), subfolder: str | None = None) -> Vocabulary | None:
    """Return the tokens that the tokenizer's file of a model lists; those added elsewhere are missing.

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
def _read(path: Path, changed: int, size: int) -> Vocabulary | None:  # noqa: ARG001  (of the file that is kept)
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokens = {id_: token for token, id_ in tokenizer.get_vocab().items()}
        return Vocabulary(tokens, frozenset(tokenizer.get_added_tokens_decoder()))
    except Exception:  # whatever a broken file raises
        return None


def _shown(entries: Mapping[int, str], id_: int) -> str:
    return repr(entries[id_]) if id_ in entries else "nothing"
