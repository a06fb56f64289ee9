"""Draws from a few candidate tokens without a row of V numbers.

What is computed from a row is cached with it, so that drawing from a row that recurs costs a binary search.
Probabilities are kept in float32, as they are recorded, and summed in float64.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from specdec_core.interface.errors import PluginError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdec_core.interface import Candidates

_BELOW = np.float32(20.0)
"""How far all other tokens are below the smallest log weight of a candidate, where V log weights are needed. If a
constraint allows no candidate, an allowed token is drawn; otherwise hardly ever one that is not a candidate."""

# What is cached with a row.
_VOCAB_SIZE, _BEST, _TEMPERED = "vocab_size", "best", "tempered"


class TemperedCandidates:
    """The distribution of a row of candidates at a temperature.

    Args:
        row: Their log weights.
        temperature: T > 0.

    Attributes:
        ids: `[S]` int, their ids.
        probabilities: `[S]` float32, each weight to the power 1/T, normalized.
        temperature: T.

    Raises:
        PluginError: The weights are not valid.
    """

    __slots__ = ("_sums", "ids", "probabilities", "temperature")

    def __init__(self, row: Candidates, temperature: float) -> None:
        self.ids, self.temperature = row.ids, temperature
        weights = row.log_weights.astype(np.float64)
        weights -= _largest(row)
        weights /= temperature
        np.exp(weights, out=weights)
        weights /= weights.sum()
        self.probabilities: NDArray[np.float32] = weights.astype(np.float32)
        self._sums: NDArray[np.float64] = self.probabilities.astype(np.float64).cumsum()

    def draw(self, uniform: float) -> tuple[int, float]:
        """Draw a token by inversion.

        Args:
            uniform: In [0, 1 - 2**-52].

        Returns:
            The token and its probability q, which is not 0.
        """
        index = int(self._sums.searchsorted(uniform * self._sums[-1], "right"))
        return int(self.ids[index]), float(self.probabilities[index])

    def probability(self, token: int) -> float:
        """Return q of a token, rounded to float32; 0 if it is not a candidate."""
        index = int(self.ids.searchsorted(token))
        listed = index < len(self.ids) and self.ids[index] == token
        return float(self.probabilities[index]) if listed else 0.0


def tempered(row: Candidates, temperature: float) -> TemperedCandidates:
    """Return a row's distribution at temperature T > 0. The last one is cached."""
    found: TemperedCandidates | None = row.prepared.get(_TEMPERED)
    if found is None or found.temperature != temperature:
        found = row.prepared[_TEMPERED] = TemperedCandidates(row, temperature)
    return found


def best_candidate(row: Candidates) -> int:
    """Return the id with the largest weight, the lowest if several are equal. It is cached."""
    found: int | None = row.prepared.get(_BEST)
    if found is None:
        _largest(row)  # raises if a weight is not valid
        found = row.prepared[_BEST] = int(row.ids[row.log_weights.argmax()])
    return found


def write_log_weights(row: Candidates, out: NDArray[np.float32]) -> None:
    """Write log weights of all V tokens to `out` `[V]`; those of tokens that are not candidates are very low."""
    _largest(row)
    out[:] = row.log_weights[np.isfinite(row.log_weights)].min() - _BELOW
    out[row.ids] = row.log_weights


def check_candidates(row: Candidates, vocab_size: int) -> None:
    """Reject ids that cannot be drawn. That a row passed is cached.

    Args:
        row: The row.
        vocab_size: V.

    Raises:
        PluginError: They are not ascending, out of range or none, or do not fit the weights.
    """
    if row.prepared.get(_VOCAB_SIZE) == vocab_size:
        return
    ids, log_weights = row.ids, row.log_weights
    if not (isinstance(ids, np.ndarray) and isinstance(log_weights, np.ndarray)):
        raise PluginError("ids and log weights of candidates must be numpy arrays.")
    if ids.shape != log_weights.shape or ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        raise PluginError(
            f"candidates have ids of shape {ids.shape} and dtype {ids.dtype}, and log weights of shape "
            f"{log_weights.shape}; give integer ids of shape [S] and log weights of shape [S], S at least 1."
        )
    if ids[0] < 0 or ids[-1] >= vocab_size or (ids[1:] <= ids[:-1]).any():
        raise PluginError(
            f"ids of candidates must be strictly ascending and within the vocabulary (0 to {vocab_size - 1})."
        )
    row.prepared[_VOCAB_SIZE] = vocab_size


def _largest(row: Candidates) -> float:
    """Return the largest log weight.

    Raises:
        PluginError: One is NaN or plus infinity, or none is finite.
    """
    largest = float(row.log_weights.max())  # NaN if any weight is NaN
    if not math.isfinite(largest):
        raise PluginError("log weights of candidates hold NaN or plus infinity, or nothing finite.")
    return largest
