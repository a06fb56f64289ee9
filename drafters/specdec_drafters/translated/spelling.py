"""The tokens of a tokenizer as text, and the tokens of a text that goes on in mid-sentence."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from specdec_core.interface import ModelError

_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
"""The byte that each character of a byte-level piece stands for."""
_SPACE = "\u2581"
"""How SentencePiece writes a space."""
_UNDERSTOOD = {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Sequence", "Strip"}
"""Decoders in which the text of a token does not depend on the tokens around it."""


@dataclass(frozen=True)
class Spelling:
    """The texts of a tokenizer's tokens.

    Attributes:
        tokenizer: A tokenizer of transformers with the backend of the library tokenizers.
        texts: For each token id the bytes that it adds to a text, or None for a special token and for an id
            without a token. A character may be spread over several tokens.
        spaced: Whether the first token of a text is spelled with a space that the text does not begin with.
        byte_tokens: Ids of tokens that stand for a byte where a text has a character that no other token holds.
    """

    tokenizer: Any
    texts: tuple[bytes | None, ...]
    spaced: bool
    byte_tokens: frozenset[int]

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """The token of each text; of several with the same text, the one that its tokenizer would use."""
        found: dict[bytes, int] = {}
        rest: dict[bytes, int] = {}
        for token, text in enumerate(self.texts):
            if text:
                (rest if token in self.byte_tokens else found).setdefault(text, token)
        return rest | found

    @cached_property
    def special(self) -> dict[str, int]:
        """The special tokens by their names."""
        tokens = self.tokenizer.convert_ids_to_tokens(sorted(set(self.tokenizer.all_special_ids)))
        return dict(zip(tokens, sorted(set(self.tokenizer.all_special_ids)), strict=True))

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """The special tokens that the tokenizer puts before a text."""
        bare = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = self.tokenizer("a")["input_ids"]
        starts = range(len(whole) - len(bare) + 1)
        at = next((at for at in starts if whole[at : at + len(bare)] == bare), 0)
        return tuple(whole[:at])

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text that goes on after another: no special ones, and no space put before it."""
        ids: list[int] = self._continuing.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def _continuing(self) -> Any:
        """A copy of the tokenizer, which shares its model, without what it does at the edges of a text."""
        from tokenizers import Tokenizer

        backend = self.tokenizer.backend_tokenizer
        parts = {name: _without_edges(_state(getattr(backend, name))) for name in ("normalizer", "pre_tokenizer")}
        # Only a whole tokenizer can be read, so an empty one brings the parts.
        empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
        read = Tokenizer.from_str(json.dumps(empty | parts))
        continuing = Tokenizer(backend.model)
        for name, part in parts.items():
            if part is not None:
                setattr(continuing, name, getattr(read, name))
        added = backend.get_added_tokens_decoder()
        continuing.add_tokens([added[token] for token in sorted(added)])
        if any(continuing.token_to_id(token.content) != number for number, token in added.items()):
            raise ModelError("drafter 'translated': the ids of a tokenizer's added tokens have gaps between them.")
        continuing.encode_special_tokens = True  # a text that only looks like a special token is none
        return continuing


def spelling_of(tokenizer: Any, size: int, whose: str) -> Spelling:
    """Return the texts of a tokenizer's tokens.

    Args:
        tokenizer: A tokenizer of transformers.
        size: V, the number of token ids.
        whose: Whose tokenizer it is, for messages.

    Raises:
        ModelError: The text of its tokens is not defined token by token, or unknown.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"drafter 'translated': {whose} tokenizer is a {type(tokenizer).__name__}, not one of the library "
            "tokenizers; save it as a fast one (tokenizer.json)."
        )
    steps = list(_steps(_state(backend.decoder)))
    kinds = {step["type"] for step in steps}
    if not kinds <= _UNDERSTOOD:
        raise ModelError(
            f"drafter 'translated': {whose} tokenizer decodes with {', '.join(sorted(kinds - _UNDERSTOOD))}, so "
            "that the text of a token depends on its neighbors. Byte-level tokenizers (GPT-2, Llama 3, Qwen) and "
            "those of SentencePiece (T5, Llama 2, Gemma) can be translated."
        )
    special = set(tokenizer.all_special_ids)
    texts: list[bytes | None] = [None] * size
    byte_tokens = set()
    for piece, token in tokenizer.get_vocab().items():
        if token < size and token not in special:
            texts[token] = _text(piece, kinds)
            if "ByteFallback" in kinds and _is_byte(piece):
                byte_tokens.add(token)
    return Spelling(tokenizer, tuple(texts), _is_spaced(steps), frozenset(byte_tokens))


def _state(part: Any) -> Any:
    """Return the settings of a decoder, normalizer or pre-tokenizer; None if there is none."""
    return None if part is None else json.loads(part.__getstate__())


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a decoder, normalizer or pre-tokenizer."""
    if part is not None:
        inner = part.get("decoders") or part.get("normalizers") or part.get("pretokenizers")
        if inner is None:
            yield part
        for step in inner or ():
            yield from _steps(step)


def _text(piece: str, kinds: set[str]) -> bytes:
    if not kinds:
        return b" " + piece.encode()  # words, which are written with spaces between them
    if "ByteLevel" in kinds:
        try:
            return bytes(map(_BYTES.__getitem__, piece))
        except KeyError:  # a token that was added to the vocabulary, which is spelled as it is
            return piece.encode()
    if "ByteFallback" in kinds and _is_byte(piece):
        return bytes.fromhex(piece[3:5])
    return piece.replace(_SPACE, " ").encode()


def _is_byte(piece: str) -> bool:
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")


def _is_spaced(steps: list[dict[str, Any]]) -> bool:
    """Whether a decoder takes a space off the beginning of a text."""
    return not steps or any(
        (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        or (step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0)
        for step in steps
    )


def _without_edges(part: Any) -> Any:
    """Return a normalizer or pre-tokenizer without what it does at the beginning and the end of a text."""
    steps = [step for step in _steps(part) if step["type"] not in ("Prepend", "Strip")]
    for step in steps:
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
        if step["type"] == "ByteLevel":
            step["add_prefix_space"] = False
    if not steps:
        return None
    if part is None or "type" not in part or part["type"] != "Sequence":
        return steps[0]
    return part | {key: steps for key in ("normalizers", "pretokenizers") if key in part}
