"""The arrays of a shard: one table for writing, checking and documenting them. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from specdec_core.interface.errors import shortened
from specdec_core.offline.record.format import FinishReason, RecordHeader

REASONS = get_args(FinishReason)
"""Finish reasons, by their number in `finish`."""
Arrays: TypeAlias = Mapping[str, NDArray[Any]]
_LARGEST_UINT16 = 2**16
_TOLERANCE = 1e-4
"""By how much two probabilities that are the same may differ."""


@dataclass(frozen=True)
class Field:
    """An array of a shard.

    Attributes:
        about: What it holds.
        shape: A letter for each axis: T texts, P prompts, L tokens of the texts, N tokens of the prompts, D the
            hidden size, K the number of most probable tokens.
        types: Number formats, as numpy names them; `id` is uint16 for a vocabulary of at most 65,536, else int32.
        low: The smallest value; None for any. Ids are at least 0.
        high: The largest value; None for any. Ids are below the size of the vocabulary.
        positive: Whether `low`, which is 0, is itself not allowed.
        where: The records that hold it; in the others it must be absent.
    """

    about: str
    shape: str
    types: tuple[str, ...]
    low: float | None = None
    high: float | None = None
    positive: bool = False
    where: Literal["always", "temperature above 0", "hidden_size", "top_k"] = "always"

    def types_for(self, vocab_size: int) -> tuple[str, ...]:
        """Return its number formats in a record with this vocabulary."""
        return ("uint16" if vocab_size <= _LARGEST_UINT16 else "int32",) if self.types == ("id",) else self.types

    def values(self) -> str:
        """Return the allowed values in a few words."""
        if self.types == ("id",):
            return "a token id"
        if self.low is None:
            return "finite"
        least = f"above {self.low:g}" if self.positive else f"at least {self.low:g}"
        return least if self.high is None else f"{least} and at most {self.high:g}"

    def invalid(self, array: NDArray[Any], vocab_size: int) -> NDArray[Any]:
        """Return the values that are not allowed."""
        low, high = (0, vocab_size - 1) if self.types == ("id",) else (self.low, self.high)
        allowed = np.isfinite(array)
        if low is not None:
            allowed &= array > low if self.positive else array >= low
        if high is not None:
            allowed &= array <= high
        found: NDArray[Any] = array[~allowed]
        return found


FIELDS: Mapping[str, Field] = {
    "numbers": Field("number of the prompt of each text, ascending", "T", ("int32",), 0),
    "samples": Field("number of each text of its prompt, ascending", "T", ("int32",), 0),
    "lengths": Field("number of tokens of each text", "T", ("int32",), 1),
    "finish": Field(
        f"why each text ended: {', '.join(f'{n} `{reason}`' for n, reason in enumerate(REASONS))}",
        "T",
        ("uint8",),
        0,
        len(REASONS) - 1,
    ),
    "prompts": Field("ids of the prompts, one after the other, each once for consecutive texts", "N", ("id",)),
    "prompt_lengths": Field("number of tokens of each prompt", "P", ("int32",), 1),
    "tokens": Field("ids of the texts, one after the other", "L", ("id",)),
    "probabilities": Field("p of each token", "L", ("float32",), 0, 1, positive=True, where="temperature above 0"),
    "hidden": Field(
        "hidden state that each token was predicted from", "LD", ("float32", "float16"), where="hidden_size"
    ),
    "top_tokens": Field("the most probable tokens at each position, all different", "LK", ("id",), where="top_k"),
    "top_probabilities": Field("their p, descending", "LK", ("float32",), 0, 1, where="top_k"),
}
"""The arrays of a shard."""


def fields_of(header: RecordHeader, *, greedy: bool) -> Mapping[str, Field]:
    """Return the arrays that the shards of a part hold.

    Args:
        header: Header of the record.
        greedy: Whether the part was decoded at temperature 0.
    """
    there = {
        "always": True,
        "temperature above 0": not greedy,
        "hidden_size": header.hidden_size is not None,
        "top_k": header.top_k > 0,
    }
    return {name: field for name, field in FIELDS.items() if there[field.where]}


def layout_problem(
    found: Mapping[str, tuple[str, tuple[int, ...]]],
    texts: int,
    tokens: int,
    header: RecordHeader,
    fields: Mapping[str, Field],
) -> str | None:
    """Return what is wrong with the names, number formats and shapes of arrays; None if nothing is.

    Args:
        found: Number format and shape of each array.
        texts: Number of texts.
        tokens: Number of their tokens.
        header: Header of the record.
        fields: The arrays that must be there.
    """
    if missing := fields.keys() - found:
        return f"it has no {', '.join(sorted(missing))}, and by its record.json it must"
    if others := found.keys() - fields:
        return f"it has {shortened(', '.join(sorted(others)))}, and by its record.json it must not"
    sizes = {"T": texts, "L": tokens, "D": header.hidden_size, "K": header.top_k}
    for name, field in fields.items():
        kind, shape = found[name]
        if kind not in (types := field.types_for(header.vocab_size)):
            return f"{name} is of {kind}, and must be of {' or '.join(types)}"
        if len(shape) != len(field.shape) or any(
            sizes.setdefault(letter, size) != size for letter, size in zip(field.shape, shape, strict=True)
        ):
            expected = ", ".join(str(sizes.get(letter, letter)) for letter in field.shape)
            return f"{name} has the shape {list(shape)}, and must have [{expected}]"
    return None


def value_problem(arrays: Arrays, header: RecordHeader, fields: Mapping[str, Field]) -> str | None:
    """Return what no target can have said in arrays of the right layout; None if nothing is.

    Args:
        arrays: The arrays.
        header: Header of the record.
        fields: The arrays that must be there.
    """
    for name, field in fields.items():
        if len(wrong := field.invalid(arrays[name], header.vocab_size)):
            limit = f" below {header.vocab_size}" if field.types == ("id",) else ""
            return f"{name} holds {wrong[0]}, and every value must be {field.values()}{limit}"
    return _order_problem(arrays) or ("top_tokens" in fields and _top_problem(arrays)) or None


def _order_problem(arrays: Arrays) -> str | None:
    """Return what is wrong with how tokens and prompts are divided."""
    for lengths, name in (("lengths", "tokens"), ("prompt_lengths", "prompts")):
        if int(arrays[lengths].sum(dtype=np.int64)) != len(arrays[name]):
            return f"the sum of {lengths} is not the length of {name}, {len(arrays[name])}"
    further, later = (np.diff(arrays[name]) for name in ("numbers", "samples"))
    if not ((further > 0) | ((further == 0) & (later > 0))).all():
        return "its texts must ascend by numbers and then by samples"
    if (prompts := 1 + np.count_nonzero(further)) != len(arrays["prompt_lengths"]):
        return f"prompt_lengths has {len(arrays['prompt_lengths'])} values, and numbers names {prompts} prompts"
    return None


def _top_problem(arrays: Arrays) -> str | None:
    """Return how the most probable tokens contradict themselves, or the token that was drawn."""
    tokens, p = arrays["top_tokens"], arrays["top_probabilities"].astype(np.float64)
    if not np.diff(np.sort(tokens.astype(np.int64))).all():
        return "top_tokens holds a token twice at one position"
    if (np.diff(p) > 0).any() or (p.sum(axis=1) > 1 + _TOLERANCE).any():
        return "top_probabilities must descend at each position, and sum to at most 1"
    drawn = arrays.get("probabilities", p[:, 0])  # greedy decoding takes the most probable
    among = tokens == arrays["tokens"][:, None]
    same = np.abs(np.where(among, p, 0).sum(axis=1) - drawn) <= _TOLERANCE
    if not np.where(among.any(axis=1), same, drawn <= p[:, -1] + _TOLERANCE).all():
        return "top_tokens and top_probabilities contradict the tokens and their probabilities"
    return None
