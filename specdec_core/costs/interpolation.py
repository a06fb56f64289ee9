"""Interpolation of T(k), D(k) and their spreads: values at all draft lengths from those at measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise


def interpolated(known: Mapping[int, float], longest: int, slope: float | None = None) -> tuple[float, ...]:
    """Return a value for every draft length 0, 1, ... `longest` from those of some lengths.

    This is the one rule for T(k), D(k) and their spreads. A length between two that are known is on the line
    between them. Below the first, its value holds. Beyond the last, the slope between the last two continues, if
    it is positive: more work never takes less time, so that a negative slope is noise.

    Args:
        known: Values by length.
        longest: The largest length.
        slope: What each token adds beyond the last known length, where more is known than the rule says; 0 keeps
            the last value.

    Returns:
        `longest` + 1 values; none if none is known.
    """
    if not known:
        return ()
    points = sorted(known.items())
    first, last = points[0], points[-1]
    values = [float(first[1])] * (first[0] + 1)
    per_token = 0.0
    for (low, left), (high, right) in pairwise(points):
        per_token = (right - left) / (high - low)
        values += [left + per_token * n for n in range(1, high - low)] + [float(right)]
    beyond = max(0.0, per_token) if slope is None else slope
    values += [last[1] + beyond * n for n in range(1, longest + 1 - last[0])]
    return tuple(values[: longest + 1])
