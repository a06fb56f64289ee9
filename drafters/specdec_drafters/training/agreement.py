"""Agreement of a drafter and its target on held-out text: alpha by Corollary 3.6."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from specdec_drafters.training.losses import overlap


@dataclass(frozen=True)
class Agreement:
    """Means over positions, with standard errors over sequences (the positions of one sequence are dependent).

    Attributes:
        alpha: The mean of beta = sum_x min(p(x), q(x)): alpha = 1 - E[TV(p, q)].
        alpha_error: Its standard error.
        greedy_alpha: The share of positions with the same argmax: alpha in greedy decoding.
        greedy_alpha_error: Its standard error.
        positions: Number of positions.

    References:
        Theorem 3.5 and Corollary 3.6 (arXiv 2211.17192).
    """

    alpha: float
    alpha_error: float
    greedy_alpha: float
    greedy_alpha_error: float
    positions: int

    def point(self) -> dict[str, float]:
        """Return the values for a point of the learning curve; without errors if there was only one sequence."""
        values = {name: value for name, value in asdict(self).items() if name != "positions"}
        return {name: value for name, value in values.items() if math.isfinite(value)}


def agreement(parts: Iterable[tuple[Tensor, Tensor, Tensor]], temperature: float = 1.0) -> Agreement:
    """Measure how well two models agree.

    Args:
        parts: Target's logits `[N, V]`, drafter's logits `[N, V]`, and the number of positions of each sequence,
            `[R]` int64 with sum N.
        temperature: Temperature of both.

    Raises:
        ValueError: The number of positions is 0.
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
        raise ValueError("no positions to measure")
    alpha, alpha_error = _ratio(torch.cat(betas), positions)
    greedy, greedy_error = _ratio(torch.cat(same), positions)
    return Agreement(alpha, alpha_error, greedy, greedy_error, int(positions.sum()))


def _ratio(sums: Tensor, counts: Tensor) -> tuple[float, float]:
    """Return sum(sums) / sum(counts) and its standard error over independent sequences: `[R]` float64 each."""
    mean = float(sums.sum() / counts.sum())
    rows = len(counts)
    if rows < 2:
        return mean, float("nan")
    residuals = sums - mean * counts
    variance = float((residuals**2).sum()) * rows / (rows - 1)
    return mean, variance**0.5 / float(counts.sum())
