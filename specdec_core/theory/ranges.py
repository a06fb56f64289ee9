"""What the arguments of the formulas may be, and what is said when one is not."""

from __future__ import annotations

import math
from collections.abc import Sequence


def check(name: str, value: float, most: float = math.inf, *, above: bool = False) -> None:
    """Refuse a number that is not in [0, most], NaN and infinity included.

    Args:
        name: What it is called.
        value: The number.
        most: The largest that is allowed; infinity allows every finite number.
        above: Whether 0 is refused too.

    Raises:
        ValueError: With what was given and what is allowed.
    """
    if (0 < value <= most and value != math.inf) or (value == 0 and not above):
        return
    if most == math.inf:
        allowed = f"a finite number, {'above' if above else 'at least'} 0"
    else:
        allowed = f"in {'(' if above else '['}0, {most:g}]"
    raise ValueError(f"{name} must be {allowed}; given {value!r}")


def check_each(name: str, values: Sequence[float], most: float = math.inf, *, above: bool = False) -> None:
    """Refuse a sequence that is empty, or that holds a number `check` refuses; say which one it is.

    Args:
        name: What it is called.
        values: The numbers.
        most: The largest that is allowed.
        above: Whether 0 is refused too.

    Raises:
        ValueError: With what was given and what is allowed.
    """
    if not len(values):
        raise ValueError(f"{name} must hold at least one number; given none")
    for index, value in enumerate(values):
        # The comparison passes what is right without a call: controllers come through here in every step.
        if not 0 < value <= most or value == math.inf:
            check(f"{name}[{index}]", value, most, above=above)


def check_gamma(gamma: int, most: int | None = None, because: str = "", *, name: str = "gamma") -> None:
    """Refuse a gamma that is no whole number of at least 0, or above `most`.

    Args:
        gamma: The number.
        most: The largest that is allowed, if there is one.
        because: What `most` is.
        name: What the number is called.

    Raises:
        ValueError: With what was given and what is allowed.
    """
    if not 0 <= gamma < math.inf or int(gamma) != gamma:
        raise ValueError(f"{name} must be a whole number, at least 0; given {gamma!r}")
    if most is not None and gamma > most:
        raise ValueError(f"{name} must be at most {most}, {because}; given {gamma!r}")
