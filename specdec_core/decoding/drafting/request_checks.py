"""Checks of what a drafter passes to its request: logits, candidates, an extension, the budget of a fork."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence

from torch import Tensor

from specdec_core.decoding.drafting.validation import FLOATS, as_tensor
from specdec_core.interface import Candidates, PluginError
from specdec_core.sampling.candidates import check_candidates


def check_values(values: Tensor, what: str, axes: str, shape: tuple[int, ...]) -> None:
    """Check the dtype and the shape of logits or probabilities.

    Args:
        values: The tensor.
        what: What it is, for messages, as a plural.
        axes: The names of its axes, such as `[B, V]`.
        shape: Their lengths.

    Raises:
        PluginError: It is not a tensor of floats of this shape.
    """
    given = tuple(as_tensor(values, what, f"{axes} float", FLOATS).shape)
    if given != shape:
        raise PluginError(f"{what} of shape {given} were given; {axes} is {shape} here.")


def check_candidate_rows(rows: Sequence[Candidates | None], left: Sequence[int], vocab_size: int) -> None:
    """Check the candidates for the next token of each row.

    Args:
        rows: The candidates of each row, or None in rows that take no token.
        left: How many tokens each row may still take.
        vocab_size: V.

    Raises:
        PluginError: Their number is wrong, some are missing, or some are not valid.
    """
    if len(rows) != len(left):
        raise PluginError(f"{len(rows)} rows were given; the batch has {len(left)}.")
    for number, row in enumerate(rows):
        if row is None:
            if left[number]:
                raise PluginError(f"None was given for row {number}, which may still take {left[number]} tokens.")
        elif not isinstance(row, Candidates):
            raise PluginError(f"row {number} is a {type(row).__name__}; expected Candidates or None.")
        else:
            check_candidates(row, vocab_size)


def check_extension(
    tokens: Sequence[Sequence[int]], q: Tensor | None, batch_size: int, vocab_size: int
) -> list[list[int]]:
    """Return the rows of an extension as plain numbers.

    Args:
        tokens: The next tokens of each row.
        q: The distribution of each, `[B, K, V]` with K at least the longest row; None where they are certain.
        batch_size: B.
        vocab_size: V.

    Raises:
        PluginError: A token is outside the vocabulary, or the number of rows or the shape of q is wrong.
    """
    rows = [list(map(operator.index, row)) for row in tokens]
    if len(rows) != batch_size or not all(0 <= token < vocab_size for row in rows for token in row):
        raise PluginError(
            f"extend() was given {reprlib.repr(rows)}; expected {batch_size} rows of token ids from 0 to "
            f"{vocab_size - 1}."
        )
    if q is not None:
        shape = tuple(as_tensor(q, "probabilities of extend()", "[B, K, V] float", FLOATS).shape)
        longest = max(map(len, rows))
        if len(shape) != 3 or (shape[0], shape[2]) != (batch_size, vocab_size) or shape[1] < longest:
            raise PluginError(
                f"extend() was given q of shape {shape}; [B, K, V] is {(batch_size, longest, vocab_size)} here."
            )
    return rows


def check_fork(budget: Sequence[int], limits: Sequence[int]) -> tuple[int, ...]:
    """Return the budget of a fork.

    Args:
        budget: The maximum number of draft tokens of each row in the fork.
        limits: The same of the request.

    Raises:
        PluginError: It exceeds that of the request.
    """
    budget = tuple(budget)
    if len(budget) != len(limits) or not all(0 <= own <= most for own, most in zip(budget, limits, strict=True)):
        raise PluginError(
            f"a request was forked with the budget {list(budget)}; expected {len(limits)} numbers from 0 to the "
            f"request's own: {list(limits)}."
        )
    return budget
