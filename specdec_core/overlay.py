"""Drawing from a row that is a few ids on top of a background, without writing the row out.

At temperature T the row's weights w become w^(1/T), listed ids and background alike, so that the adjusted row is
again an overlay: on the background^(1/T), which is computed once. Sums run over the listed ids; what the
background has left beside them is its total less what it has at these ids. A number u in [0, 1) times the sum of
both falls either among the listed ids, whose cumulative sum is searched, or into the background. There let

    free_j = (sum of the background below the j-th listed id) - (the same over listed ids only),

which does not fall with j: the place in the background lies behind as many listed ids as have free_j at or below
it, and adding their mass again turns it into a place in the background's own cumulative sum. That is O(S + log V)
the first time that a row is used, and O(log S + log V) after that.

Weights are kept as float32, as they are recorded, and added up in float64.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from specdec_core.errors import PluginError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from specdec_core.border import Background, OverlayRow

# A study goes from one temperature to the next; what was computed for the last few is kept.
_TEMPERATURES_KEPT = 2
_BEST = "best"


class BackgroundAt:
    """A background at a temperature.

    Args:
        background: Log weights.
        temperature: T, above 0.

    Attributes:
        probabilities: `[V]` float32, the background's weights to the power 1/T, normalised.
        weights: The same as float64.
        sums: `[V]` float64, their cumulative sum.
        total: Their sum: 1 up to rounding.
        log_total: ln of what they were divided by.
    """

    def __init__(self, background: Background, temperature: float) -> None:
        log_weights = background.log_weights.astype(np.float64) / temperature
        top = float(log_weights.max())
        if not math.isfinite(top):
            raise PluginError("the background of a row has no finite log weight, or holds NaN.")
        weights = np.exp(log_weights - top)
        total = float(weights.sum())
        self.probabilities: NDArray[np.float32] = (weights / total).astype(np.float32)
        self.weights: NDArray[np.float64] = self.probabilities.astype(np.float64)
        self.sums: NDArray[np.float64] = self.weights.cumsum()
        self.total = float(self.sums[-1])
        self.log_total = top + math.log(total)
        self._tensors: dict[torch.device, Tensor] = {}

    def tensor(self, device: torch.device) -> Tensor:
        """Return `probabilities` `[V]` on a device, moved there once."""
        tensor = self._tensors.get(device)
        if tensor is None:
            tensor = self._tensors[device] = torch.from_numpy(self.probabilities).to(device)
        return tensor


class RowAt:
    """The distribution of a row at a temperature.

    Args:
        row: Log weights.
        temperature: T, above 0.

    Attributes:
        background: The background at T.
        ids: `[S]`, the listed ids.
        probabilities: `[S]` float32, q of each.
        scale: The factor that makes q of the background's probability for all other ids.

    Raises:
        PluginError: if the ids are out of order or out of range, or no weight is a positive number.
    """

    __slots__ = (
        "_covered",
        "_free",
        "_listed",
        "_share",
        "_sums",
        "_total",
        "background",
        "ids",
        "probabilities",
        "scale",
    )

    def __init__(self, row: OverlayRow, temperature: float) -> None:
        self.background = background = _background_at(row.background, temperature)
        self.ids = ids = row.ids
        _check(row, len(background.weights))
        top = _top(row)
        log_weights = row.log_weights - top
        if temperature != 1:
            log_weights *= 1 / temperature
        weights: NDArray[np.float32] = np.exp(log_weights, dtype=np.float32)
        self._share = math.exp((row.log_scale - top) / temperature + background.log_total)
        self._sums: NDArray[np.float64] = weights.cumsum(dtype=np.float64)
        self._covered: NDArray[np.float64] = background.weights.take(ids).cumsum()
        self._listed, covered = (float(self._sums[-1]), float(self._covered[-1])) if len(ids) else (0.0, 0.0)
        left = max(background.total - covered, 0.0)
        self._total = self._listed + self._share * left
        if not 0 < self._total < math.inf:
            raise PluginError("a row's log weights hold NaN or plus infinity, or nothing finite.")
        self.probabilities: NDArray[np.float32] = weights * np.float32(1 / self._total)
        self.scale = self._share / self._total
        self._free: NDArray[np.float64] | None = None  # made when the background is first drawn from

    def draw(self, uniform: float) -> tuple[int, float]:
        """Draw a token by inversion.

        Args:
            uniform: In [0, 1 - 2**-52].

        Returns:
            The token and its q, which is not 0.
        """
        place = uniform * self._total
        if place < self._listed:
            index = int(self._sums.searchsorted(place, "right"))
            token, q = int(self.ids[index]), float(self.probabilities[index])
        else:
            token = self._from_background((place - self._listed) / self._share)
            q = self.density(token)
        if q > 0:
            return token, q
        # The number fell where float32 has nothing left. That is rarer than any q there is.
        token = self._heaviest()
        return token, self.density(token)

    def density(self, token: int) -> float:
        """Return q of a token, as float32 has it."""
        index = int(self.ids.searchsorted(token))
        if index < len(self.ids) and self.ids[index] == token:
            return float(self.probabilities[index])
        return float(np.float32(self.scale) * self.background.probabilities[token])

    def write(self, out: NDArray[np.float32]) -> None:
        """Write q of all V tokens to `out`."""
        np.multiply(self.background.probabilities, np.float32(self.scale), out=out)
        out[self.ids] = self.probabilities

    def _from_background(self, place: float) -> int:
        """Return the id at a place in what the background has left beside the listed ids."""
        ids, sums = self.ids, self.background.sums
        before = 0
        if len(ids):
            if self._free is None:
                self._free = sums.take(ids) - self._covered
            before = int(self._free.searchsorted(place, "right"))
            if before:
                place += float(self._covered[before - 1])
        token = int(sums.searchsorted(place, "right"))
        behind = before == 0 or token > ids[before - 1]
        ahead = token < ids[before] if before < len(ids) else token < len(sums)
        return token if behind and ahead else self._nearest(token)

    def _nearest(self, token: int) -> int:
        """Return the id nearest to where rounding led to a listed one, or beyond the last."""
        weights = self.background.weights.copy()
        weights[self.ids] = 0
        free = np.flatnonzero(weights)
        if not len(free):
            return self._heaviest()
        return int(free[min(int(free.searchsorted(token)), len(free) - 1)])

    def _heaviest(self) -> int:
        q = np.empty_like(self.background.probabilities)
        self.write(q)
        return int(q.argmax())


def row_at(row: OverlayRow, temperature: float) -> RowAt:
    """Return the row's distribution at temperature T > 0, computed once."""
    found: RowAt | None = row.prepared.get(temperature)
    if found is None:
        found = RowAt(row, temperature)
        _keep(row.prepared, temperature, found)
    return found


def best(row: OverlayRow) -> int:
    """Return the id of the largest weight, the lowest of equals: the argmax of the row written out."""
    found: int | None = row.prepared.get(_BEST)
    if found is None:
        found = row.prepared[_BEST] = _find_best(row)
    return found


def write_log_weights(row: OverlayRow, out: NDArray[np.float32]) -> None:
    """Write the row's log weights to `out` `[V]`."""
    _check(row, len(row.background.log_weights))
    np.add(row.background.log_weights, row.log_scale, out=out)
    out[row.ids] = row.log_weights


def _find_best(row: OverlayRow) -> int:
    _check(row, len(row.background.log_weights))
    order, largest = _ranked(row.background)
    if len(row.ids):
        index = int(row.log_weights.argmax())
        own = float(row.log_weights[index])
        if own > largest + row.log_scale:
            return int(row.ids[index])
    _top(row)  # refuses what is no number
    # Of so many leading ids of the background, one at least is not listed, if any is.
    leading = order[: len(row.ids) + 1]
    free = leading[~np.isin(leading, row.ids)]
    if not len(free):
        return int(row.ids[index])
    other = float(row.background.log_weights[free[0]]) + row.log_scale
    if not len(row.ids) or other > own or (other == own and free[0] < row.ids[index]):
        return int(free[0])
    return int(row.ids[index])


def _ranked(background: Background) -> tuple[NDArray[np.int64], float]:
    """Return the background's ids by falling weight, the lowest of equals first, and the largest log weight."""
    found: tuple[NDArray[np.int64], float] | None = background.prepared.get(_BEST)
    if found is None:
        order = np.argsort(-background.log_weights, kind="stable")
        found = order, float(background.log_weights.max())  # NaN if any is
        background.prepared[_BEST] = found
    return found


def _top(row: OverlayRow) -> float:
    """Return the largest log weight that the row may have."""
    top = _ranked(row.background)[1] + row.log_scale
    if len(row.ids):
        top = max(float(row.log_weights.max()), top)
    if not math.isfinite(top):
        raise PluginError("a row's log weights hold NaN or plus infinity, or nothing finite.")
    return top


def _background_at(background: Background, temperature: float) -> BackgroundAt:
    found: BackgroundAt | None = background.prepared.get(temperature)
    if found is None:
        found = BackgroundAt(background, temperature)
        _keep(background.prepared, temperature, found)
    return found


def _keep(prepared: dict[object, object], temperature: float, value: object) -> None:
    """Add what was computed for a temperature, and drop the oldest where there are many."""
    others = [key for key in prepared if key != _BEST]
    if len(others) >= _TEMPERATURES_KEPT:
        del prepared[others[0]]
    prepared[temperature] = value


def _check(row: OverlayRow, vocab_size: int) -> None:
    ids = row.ids
    if ids.shape != row.log_weights.shape or ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise PluginError(
            f"a row has ids of shape {ids.shape} and dtype {ids.dtype}, and log weights of shape "
            f"{row.log_weights.shape}; [S] integers and [S] are wanted."
        )
    if len(ids) and (ids[0] < 0 or ids[-1] >= vocab_size or (ids[1:] <= ids[:-1]).any()):
        raise PluginError(
            f"a row's ids must be ascending, each once, within the vocabulary (0 to {vocab_size - 1})."
        )
