"""Checks for the arguments of the formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence


def check(name: str, value: float, max_value: float = math.inf, *, above: bool = False) -> None:
    """Check that a number is in [0, max_value]; NaN and infinity are errors.

    Args:
        name: Name of the argument.
        value: The number.
        max_value: The largest allowed value; infinity allows every finite number.
        above: Whether 0 is out of range too.

    Raises:
        ValueError: If it is not, with what was given and what is allowed.
    """
    if (0 < value <= max_value and value != math.inf) or (value == 0 and not above):
        return
    if max_value == math.inf:
        allowed = f"a finite number, {'above' if above else 'at least'} 0"
    else:
        allowed = f"in {'(' if above else '['}0, {max_value:g}]"
    raise ValueError(f"{name} must be {allowed}; given {value!r}")


def check_each(name: str, values: Sequence[float], max_value: float = math.inf, *, above: bool = False) -> None:
    """Check that a sequence is not empty, and each of its numbers as in `check`.

    Args:
        name: Name of the argument.
        values: The numbers.
        max_value: The largest allowed value.
        above: Whether 0 is out of range too.

    Raises:
        ValueError: If it is not, with what was given and what is allowed.
    """
    if not len(values):
        raise ValueError(f"{name} must hold at least one number; given none")
    for index, value in enumerate(values):
        # Avoids a call for valid numbers: controllers run this in every step.
        if not 0 < value <= max_value or value == math.inf:
            check(f"{name}[{index}]", value, max_value, above=above)


def check_gamma(gamma: int, max_gamma: int | None = None, because: str = "", *, name: str = "gamma") -> None:
    """Check that a gamma is a whole number from 0 to `max_gamma`.

    Args:
        gamma: The number.
        max_gamma: The largest allowed gamma, if there is one.
        because: What `max_gamma` is, for the message.
        name: Name of the argument.

    Raises:
        ValueError: If it is not, with what was given and what is allowed.
    """
    if not 0 <= gamma < math.inf or int(gamma) != gamma:
        raise ValueError(f"{name} must be a whole number, at least 0; given {gamma!r}")
    if max_gamma is not None and gamma > max_gamma:
        raise ValueError(f"{name} must be at most {max_gamma}{f', {because}' if because else ''}; given {gamma!r}")
