"""The ids of tokens that a log spells as texts, where a text is that of one token only.

A text is not the id: several tokens may be written alike (a leading space that is dropped, parts of a character).
Then nothing tells which one was drawn, and q of another token would be compared with its p.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from specdec_core.interface.errors import shortened
from specdec_core.models import bytes_of_characters
from specdec_core.offline.record.log_lines import LineError

_SPACE = "\u2581"
"""How SentencePiece writes a space."""
_MOST_SHOWN = 4


class TokenTexts:
    """Finds the id of a token by its text.

    Args:
        tokenizer: A tokenizer of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._ids: dict[str, list[int]] = {}
        byte_level = _is_byte_level(tokenizer)
        pieces = {token: piece for piece, token in tokenizer.get_vocab().items()}
        special = set(tokenizer.all_special_ids)
        for token, piece in pieces.items():
            forms = {piece} if token in special else set(_forms(tokenizer, token, piece, byte_level))
            for form in forms:
                self._ids.setdefault(form, []).append(token)

    def id_of(self, text: str) -> int:
        """Return the id of the only token with this text.

        Raises:
            LineError: There is none, or several.
        """
        found = self._ids.get(text, [])
        if len(found) == 1:
            return found[0]
        shown = shortened(json.dumps(text), 40)
        if not found:
            raise LineError(f"the token {shown} is not in the tokenizer of the target; is it another model's?")
        ids = ", ".join(map(str, found[:_MOST_SHOWN])) + (", ..." if len(found) > _MOST_SHOWN else "")
        raise LineError(
            f"the token {shown} may be any of {len(found)} ids ({ids}). Log token ids: `return_token_ids` or "
            "`return_tokens_as_token_ids` of vLLM."
        )


def _forms(tokenizer: Any, token: int, piece: str, byte_level: bool) -> Iterator[str]:
    """Yield the ways in which a token may be written."""
    yield tokenizer.decode([token], skip_special_tokens=False)
    if byte_level:
        characters = bytes_of_characters()
        if all(one in characters for one in piece):
            yield bytes(characters[one] for one in piece).decode("utf-8", "surrogateescape")
    elif len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        yield bytes.fromhex(piece[3:5]).decode("utf-8", "surrogateescape")
    else:
        yield piece.replace(_SPACE, " ")


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether pieces spell bytes in the characters of GPT-2."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and '"ByteLevel"' in json.dumps(json.loads(backend.to_str()).get("decoder"))
