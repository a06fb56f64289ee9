"""Estimates of alpha and acceptance by position from samples, with their uncertainty. Imports no torch.

Each sample is a draft x_1 ... x_K with, at each position i, beta_i = sum_x min(p_i / l, q_i) and the acceptance
probability of its own token, a_i = min(1, p_i(x_i) / (l q_i(x_i))). Position i is verified if those before it were
accepted, which has probability w_i = a_1 ... a_{i-1}. So

    P(accepted at i | accepted before) = E(w_i beta_i) / E(w_i),

where both expectations are means over the samples. Drawing whether tokens are accepted would only add noise
(Rao-Blackwell).

References:
    Leviathan et al. 2023, Definition 3.1 to Corollary 3.6 and section 4.2 (arXiv 2211.17192).
    T. Hesterberg: What Teachers Should Know about the Bootstrap, 2014 (arXiv 1411.5279), for the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_core.measurement.measurement_file import Acceptance
from specdec_core.theory.intervals import tail

RESAMPLES = 2000
"""Number of resamples for an interval."""
MIN_PROMPTS = 10
"""With fewer prompts, blocks of tokens are resampled instead of prompts."""

_MIN_BLOCK, _MAX_BLOCKS, _MIN_BLOCKS = 32, 40, 8
_Floats = NDArray[np.float64]
_Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """N samples, one for each token of the target at which a draft was requested.

    Attributes:
        prompt: `[N]`, number of the prompt. Samples of a prompt are in the order of its text.
        asked: `[N]`, how many tokens were requested.
        drafted: `[N]`, how many were proposed.
        beta: `[N, K, L]`, probability that a token drawn from q is accepted at each position, for L values of l.
        own: `[N, K, L]`, probability that the drafted token is accepted. Both are 0 beyond `drafted`.
    """

    prompt: _Integers
    asked: _Integers
    drafted: _Integers
    beta: _Floats
    own: _Floats


def estimate(
    samples: Samples, which: int, temperature: float, lenience: float, generator: np.random.Generator
) -> Acceptance:
    """Return alpha with a 95% confidence interval, and acceptance by position.

    Tokens of one text are correlated, so the interval comes from resampling prompts with all their texts (2,000
    times). With fewer than ten prompts, blocks of consecutive tokens are resampled instead: the interval then
    holds for these prompts, and not for others like them. With a single block it is [0, 1].

    Args:
        samples: The samples at this temperature.
        which: Index of the value of l.
        temperature: The temperature of the samples.
        lenience: The value of l.
        generator: Random generator for resampling.
    """
    beta, own = samples.beta[:, :, which], samples.own[:, :, which]
    position = np.arange(beta.shape[1])
    asked, there = samples.asked[:, None] > position, samples.drafted[:, None] > position
    reached = np.concatenate([np.ones((len(own), 1)), np.cumprod(own, axis=1)[:, :-1]], axis=1)  # w_i
    weight = reached * there
    rates = _ratio((weight * beta).sum(axis=0), weight.sum(axis=0))
    low, high, errors = _uncertainty(_blocks(samples.prompt), weight * beta, weight, generator)
    # A proposed position is never reached if a token before it is always rejected.
    known = int(np.argmin(np.append(weight.sum(axis=0) > 0, False)))
    possible = reached * (asked & (samples.drafted[:, None] >= position))
    alpha = float(rates[0])
    return Acceptance(
        temperature=temperature,
        lenience=lenience,
        tokens=len(beta),
        alpha=alpha,
        low=min(low, alpha) if known else 0.0,
        high=max(high, alpha) if known else 0.0,
        by_position=tuple(map(float, rates[: max(known, 1)])),
        by_position_error=tuple(map(float, errors[: max(known, 1)])),
        proposed=tuple(map(float, _ratio(weight.sum(axis=0), possible.sum(axis=0)))),
        drafted=tuple(map(float, _ratio(there.sum(axis=0), asked.sum(axis=0)))),
    )


def _ratio(part: _Floats | _Integers, whole: _Floats | _Integers) -> _Floats:
    """Return part / whole in [0, 1], or 0 where whole is 0."""
    ratio: _Floats = np.divide(part, whole, out=np.zeros(whole.shape), where=whole > 0)
    return ratio.clip(0.0, 1.0)


def _blocks(prompt: _Integers) -> _Integers:
    """Return the block of each sample, `[N]`: its prompt, or a part of the prompt's text."""
    names, number = np.unique(prompt, return_inverse=True)
    if len(names) >= MIN_PROMPTS:
        return number.astype(np.int64)
    longest = max(_MIN_BLOCK, len(prompt) // _MAX_BLOCKS)
    size = max(1, min(longest, len(prompt) // _MIN_BLOCKS))
    position = np.empty(len(prompt), dtype=np.int64)
    for n in range(len(names)):
        of_prompt = number == n
        position[of_prompt] = np.arange(of_prompt.sum())
    # Renumbered without gaps.
    return np.unique(np.stack([number, position // size]), axis=1, return_inverse=True)[1].astype(np.int64)


def _uncertainty(
    block: _Integers, gain: _Floats, weight: _Floats, generator: np.random.Generator
) -> tuple[float, float, _Floats]:
    """Return the ends of alpha's interval, and the standard error at each position, `[K]`.

    Args:
        block: `[N]`, the block of each sample.
        gain: `[N, K]`, w_i beta_i.
        weight: `[N, K]`, w_i.
        generator: Random generator for resampling.
    """
    count = int(block.max()) + 1
    if count < 2:
        return 0.0, 1.0, np.zeros(gain.shape[1])
    gains, weights = (_sums(block, count, each) for each in (gain, weight))
    times = generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(np.float64)
    below = times @ weights
    rates = np.divide(times @ gains, below, out=np.full(below.shape, np.nan), where=below > 0)
    known = ~np.isnan(rates)
    errors = np.array([rates[known[:, k], k].std() if known[:, k].any() else 0.0 for k in range(rates.shape[1])])
    first = rates[known[:, 0], 0]
    if not len(first):
        return 0.0, 0.0, errors
    outside = tail(count)
    low, high = np.clip(np.quantile(first, [outside, 1 - outside]), 0.0, 1.0)
    # The bootstrap variance lacks the factor n / (n - 1).
    return float(low), float(high), errors * math.sqrt(count / (count - 1))


def _sums(block: _Integers, count: int, values: _Floats) -> _Floats:
    """Return the sum of each block, `[count, K]`."""
    sums = np.zeros((count, values.shape[1]))
    np.add.at(sums, block, values)
    return sums
