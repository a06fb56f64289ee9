"""How well a drafter agrees with its target on held-out text: alpha as Corollary 3.6 has it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from specdec_drafters.training.losses import overlap


@dataclass(frozen=True)
class Agreement:
    """Means over positions, with the standard error over rows (the positions of a row depend on one another).

    Attributes:
        alpha: The mean of beta = sum_x min(p(x), q(x)): alpha = 1 - E[TV(p, q)].
        alpha_error: Its standard error.
        argmax: The share of positions at which the likeliest tokens agree: alpha at temperature 0.
        argmax_error: Its standard error.
        positions: How many there were.

    References:
        Theorem 3.5 and Corollary 3.6 (arXiv 2211.17192).
    """

    alpha: float
    alpha_error: float
    argmax: float
    argmax_error: float
    positions: int

    def point(self) -> dict[str, float]:
        """Return what belongs to a point of the learning curve; no error where one row alone was measured."""
        values = {name: value for name, value in asdict(self).items() if name != "positions"}
        return {name: value for name, value in values.items() if math.isfinite(value)}


def agreement(parts: Iterable[tuple[Tensor, Tensor, Tensor]], temperature: float = 1.0) -> Agreement:
    """Measure how well two models agree.

    Args:
        parts: Target's logits `[N, V]`, drafter's logits `[N, V]`, and how many of the N positions each row has,
            one row after the other, `[R]` int64; as many parts as needed.
        temperature: Of both.

    Raises:
        ValueError: There is no position.
    """
    betas, same, counts = [], [], []
    for p_logits, logits, lengths in parts:
        rows = torch.arange(len(lengths)).repeat_interleave(lengths.cpu())
        beta = overlap(p_logits.float(), logits.float(), temperature).double().cpu()
        equal = (p_logits.argmax(-1) == logits.argmax(-1)).double().cpu()
        betas.append(torch.zeros(len(lengths), dtype=torch.float64).index_add_(0, rows, beta))
        same.append(torch.zeros(len(lengths), dtype=torch.float64).index_add_(0, rows, equal))
        counts.append(lengths.double().cpu())
    positions = torch.cat(counts) if counts else torch.zeros(0, dtype=torch.float64)
    if not positions.sum():
        raise ValueError("there is no position to measure on")
    alpha, alpha_error = _ratio(torch.cat(betas), positions)
    argmax, argmax_error = _ratio(torch.cat(same), positions)
    return Agreement(alpha, alpha_error, argmax, argmax_error, int(positions.sum()))


def _ratio(sums: Tensor, counts: Tensor) -> tuple[float, float]:
    """Return sum(sums) / sum(counts) and its standard error, rows being independent: `[R]` float64 each."""
    mean = float(sums.sum() / counts.sum())
    rows = len(counts)
    if rows < 2:
        return mean, float("nan")
    residuals = sums - mean * counts
    variance = float((residuals**2).sum()) * rows / (rows - 1)
    return mean, variance**0.5 / float(counts.sum())
