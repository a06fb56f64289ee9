"""Sample a back-off distribution without materialising it.

A back-off row lists the log weights of a few n-grams' last tokens. All other tokens have the weight that a
lower-order distribution gives them, times a back-off weight. At temperature T every weight w becomes w^(1/T), so
that the adjusted row is again a back-off row, on top of the tempered lower-order distribution, which is computed
once and shared.

A token is drawn by inversion with one uniform number u in [0, 1). Let `total` be the weight of the listed tokens
plus that of all others; the latter is what remains of the lower order after the listed tokens' own share. If u *
total falls among the listed tokens, their cumulative sum is searched. Otherwise the rest is a place in the lower
order without the listed tokens. With the listed ids in ascending order, let

    unlisted_j = (lower-order mass below the j-th listed id) - (lower-order mass of the listed ids below it),

which does not decrease with j. The place comes after as many listed ids as have `unlisted_j` at or below it;
adding their mass gives a place in the cumulative sum of the whole lower order, which is searched. With S listed
ids this takes O(S + log V) for the first draw from a row and O(log S + log V) after that.

Weights are kept in float32, as they are recorded, and summed in float64.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from specdec_core.interface.errors import PluginError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from specdec_core.interface import BackoffRow, LowerOrder

_MAX_CACHED_TEMPERATURES = 2
_RANKING = "ranking"
_ARGMAX = "argmax"


class TemperedLowerOrder:
    """A lower-order distribution at a temperature.

    Args:
        lower_order: Log weights.
        temperature: T > 0.

    Attributes:
        probabilities: `[V]` float32, the weights to the power 1/T, normalised.
        weights: The same in float64.
        sums: `[V]` float64, their cumulative sum.
        total: Their sum, 1 up to rounding.
        log_total: ln of the normaliser.
    """

    def __init__(self, lower_order: LowerOrder, temperature: float) -> None:
        log_weights = lower_order.log_weights.astype(np.float64) / temperature
        top = float(log_weights.max())
        if not math.isfinite(top):
            raise PluginError("the lower order of a back-off row has no finite log weight, or holds NaN.")
        weights = np.exp(log_weights - top)
        total = float(weights.sum())
        self.probabilities: NDArray[np.float32] = (weights / total).astype(np.float32)
        self.weights: NDArray[np.float64] = self.probabilities.astype(np.float64)
        self.sums: NDArray[np.float64] = self.weights.cumsum()
        self.total = float(self.sums[-1])
        self.log_total = top + math.log(total)
        self._tensors: dict[torch.device, Tensor] = {}

    def tensor(self, device: torch.device) -> Tensor:
        """Return `probabilities` `[V]` on a device; copied there once."""
        tensor = self._tensors.get(device)
        if tensor is None:
            tensor = self._tensors[device] = torch.from_numpy(self.probabilities).to(device)
        return tensor


class TemperedRow:
    """The distribution of a back-off row at a temperature.

    Args:
        row: Log weights.
        temperature: T > 0.

    Attributes:
        lower_order: The lower-order distribution at T.
        ids: `[S]`, the listed ids.
        probabilities: `[S]` float32, their probabilities.
        backoff_weight: The probability of any other token is `backoff_weight * lower_order.probabilities[token]`.

    Raises:
        PluginError: The ids are not ascending or out of range, or the weights are not valid.
    """

    __slots__ = (
        "_backoff",
        "_listed",
        "_listed_in_lower",
        "_sums",
        "_total",
        "_unlisted",
        "backoff_weight",
        "ids",
        "lower_order",
        "probabilities",
    )

    def __init__(self, row: BackoffRow, temperature: float) -> None:
        self.lower_order = lower_order = _temper_lower_order(row.lower_order, temperature)
        self.ids = ids = row.ids
        _check_ids(row, len(lower_order.weights))
        largest = _largest(row)
        log_weights = row.log_weights - largest
        if temperature != 1:
            log_weights *= 1 / temperature
        weights: NDArray[np.float32] = np.exp(log_weights, dtype=np.float32)
        self._backoff = math.exp((row.log_backoff_weight - largest) / temperature + lower_order.log_total)
        self._sums: NDArray[np.float64] = weights.cumsum(dtype=np.float64)
        self._listed_in_lower: NDArray[np.float64] = lower_order.weights.take(ids).cumsum()
        self._listed = float(self._sums[-1]) if len(ids) else 0.0
        listed_in_lower = float(self._listed_in_lower[-1]) if len(ids) else 0.0
        self._total = self._listed + self._backoff * max(lower_order.total - listed_in_lower, 0.0)
        if not 0 < self._total < math.inf:
            raise PluginError("a back-off row's log weights hold NaN or plus infinity, or nothing finite.")
        self.probabilities: NDArray[np.float32] = weights * np.float32(1 / self._total)
        self.backoff_weight = self._backoff / self._total
        self._unlisted: NDArray[np.float64] | None = None  # computed when an unlisted token is first drawn

    def draw(self, uniform: float) -> tuple[int, float]:
        """Draw a token by inversion.

        Args:
            uniform: In [0, 1 - 2**-52].

        Returns:
            The token and its probability q, which is not 0.
        """
        place = uniform * self._total
        if place < self._listed:
            index = int(self._sums.searchsorted(place, "right"))
            token, q = int(self.ids[index]), float(self.probabilities[index])
        else:
            token = self._draw_unlisted((place - self._listed) / self._backoff)
            q = self.probability(token)
        if q > 0:
            return token, q
        # q underflowed in float32. This is less likely than any token with q > 0.
        token = self._most_probable()
        return token, self.probability(token)

    def probability(self, token: int) -> float:
        """Return q of a token, rounded to float32."""
        index = int(self.ids.searchsorted(token))
        if index < len(self.ids) and self.ids[index] == token:
            return float(self.probabilities[index])
        return float(np.float32(self.backoff_weight) * self.lower_order.probabilities[token])

    def write(self, out: NDArray[np.float32]) -> None:
        """Write q of all V tokens to `out`."""
        np.multiply(self.lower_order.probabilities, np.float32(self.backoff_weight), out=out)
        out[self.ids] = self.probabilities

    def _draw_unlisted(self, place: float) -> int:
        """Return the id at a place in the cumulative sum of the lower order without its listed ids."""
        ids, sums = self.ids, self.lower_order.sums
        before = 0
        if len(ids):
            if self._unlisted is None:
                self._unlisted = sums.take(ids) - self._listed_in_lower
            before = int(self._unlisted.searchsorted(place, "right"))
            if before:
                place += float(self._listed_in_lower[before - 1])
        token = int(sums.searchsorted(place, "right"))
        after_previous = before == 0 or token > ids[before - 1]
        before_next = token < ids[before] if before < len(ids) else token < len(sums)
        return token if after_previous and before_next else self._nearest_unlisted(token)

    def _nearest_unlisted(self, token: int) -> int:
        """Return the nearest unlisted id, if rounding led to a listed one or past the end."""
        weights = self.lower_order.weights.copy()
        weights[self.ids] = 0
        unlisted = np.flatnonzero(weights)
        if not len(unlisted):
            return self._most_probable()
        return int(unlisted[min(int(unlisted.searchsorted(token)), len(unlisted) - 1)])

    def _most_probable(self) -> int:
        q = np.empty_like(self.lower_order.probabilities)
        self.write(q)
        return int(q.argmax())


def tempered_row(row: BackoffRow, temperature: float) -> TemperedRow:
    """Return a row's distribution at temperature T > 0. It is cached on the row."""
    found: TemperedRow | None = row.prepared.get(temperature)
    if found is None:
        found = TemperedRow(row, temperature)
        _cache(row.prepared, temperature, found)
    return found


def backoff_argmax(row: BackoffRow) -> int:
    """Return the id with the largest weight, the lowest if several are equal. It is cached on the row."""
    found: int | None = row.prepared.get(_ARGMAX)
    if found is None:
        found = row.prepared[_ARGMAX] = _find_argmax(row)
    return found


def write_log_weights(row: BackoffRow, out: NDArray[np.float32]) -> None:
    """Write the log weights of all V tokens to `out` `[V]`."""
    _check_ids(row, len(row.lower_order.log_weights))
    np.add(row.lower_order.log_weights, row.log_backoff_weight, out=out)
    out[row.ids] = row.log_weights


def _find_argmax(row: BackoffRow) -> int:
    _check_ids(row, len(row.lower_order.log_weights))
    order, largest = _ranked(row.lower_order)
    if len(row.ids):
        index = int(row.log_weights.argmax())
        own = float(row.log_weights[index])
        if own > largest + row.log_backoff_weight:
            return int(row.ids[index])
    _largest(row)  # raises if a weight is not valid
    # Among the S + 1 most probable ids of the lower order, at least one is not listed, if any is.
    leading = order[: len(row.ids) + 1]
    unlisted = leading[~np.isin(leading, row.ids)]
    if not len(unlisted):
        return int(row.ids[index])
    other = float(row.lower_order.log_weights[unlisted[0]]) + row.log_backoff_weight
    if not len(row.ids) or other > own or (other == own and unlisted[0] < row.ids[index]):
        return int(unlisted[0])
    return int(row.ids[index])


def _ranked(lower_order: LowerOrder) -> tuple[NDArray[np.int64], float]:
    """Return the lower order's ids by descending weight, equal ones by ascending id, and its largest weight."""
    found: tuple[NDArray[np.int64], float] | None = lower_order.prepared.get(_RANKING)
    if found is None:
        order = np.argsort(-lower_order.log_weights, kind="stable")
        found = order, float(lower_order.log_weights.max())  # NaN if any weight is NaN
        lower_order.prepared[_RANKING] = found
    return found


def _largest(row: BackoffRow) -> float:
    """Return an upper bound on the row's log weights.

    Raises:
        PluginError: A log weight is NaN or plus infinity, or none is finite.
    """
    largest = _ranked(row.lower_order)[1] + row.log_backoff_weight
    if len(row.ids):
        largest = max(float(row.log_weights.max()), largest)
    if not math.isfinite(largest):
        raise PluginError("a back-off row's log weights hold NaN or plus infinity, or nothing finite.")
    return largest


def _temper_lower_order(lower_order: LowerOrder, temperature: float) -> TemperedLowerOrder:
    found: TemperedLowerOrder | None = lower_order.prepared.get(temperature)
    if found is None:
        found = TemperedLowerOrder(lower_order, temperature)
        _cache(lower_order.prepared, temperature, found)
    return found


def _cache(prepared: dict[object, object], temperature: float, value: object) -> None:
    """Cache the value for a temperature, and drop the oldest if there are too many."""
    temperatures = [key for key in prepared if not isinstance(key, str)]
    if len(temperatures) >= _MAX_CACHED_TEMPERATURES:
        del prepared[temperatures[0]]
    prepared[temperature] = value


def _check_ids(row: BackoffRow, vocab_size: int) -> None:
    ids = row.ids
    if ids.shape != row.log_weights.shape or ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise PluginError(
            f"a back-off row has ids of shape {ids.shape} and dtype {ids.dtype}, and log weights of shape "
            f"{row.log_weights.shape}; give integer ids of shape [S] and log weights of shape [S]."
        )
    if len(ids) and (ids[0] < 0 or ids[-1] >= vocab_size or (ids[1:] <= ids[:-1]).any()):
        raise PluginError(
            f"a back-off row's ids must be strictly ascending and within the vocabulary (0 to {vocab_size - 1})."
        )
