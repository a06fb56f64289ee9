"""From samples to alpha and acceptance by position, each with its uncertainty. Importing this imports no torch.

At each of the target's tokens there is a draft x_1 ... x_K, and at each position i of it beta_i = sum_x min(p_i /
l, q_i) and the odds of its own token, a_i = min(1, p_i(x_i) / (l q_i(x_i))). Position i is judged when those
before it were accepted, which happens with probability w_i = a_1 ... a_{i-1}. So

    P(accepted at i | accepted before) = E(w_i beta_i) / E(w_i),

and both expectations are means over the samples: no coin is tossed, which would only add noise (Rao-Blackwell).

References:
    Leviathan et al. 2023, Definition 3.1 to Corollary 3.6 and section 4.2 (arXiv 2211.17192).
    T. Hesterberg: What Teachers Should Know about the Bootstrap, 2014 (arXiv 1411.5279), for the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from specdec_core.measurement.file import Acceptance

RESAMPLES = 2000
"""How often prompts, or blocks, are drawn anew for an interval."""
FEWEST_PROMPTS = 10
"""With fewer, blocks of tokens are resampled in the place of prompts."""

_SHORTEST_BLOCK, _MOST_BLOCKS, _FEWEST_BLOCKS = 32, 40, 8
_Floats = NDArray[np.float64]
_Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """One sample for each token of the target before which the drafter was asked; N in all.

    Attributes:
        prompt: `[N]`, number of the prompt whose text it is in. Samples of a prompt stand in the text's order.
        asked: `[N]`, how many tokens the drafter was asked for.
        drafted: `[N]`, how many it proposed.
        beta: `[N, K, L]`, probability that a token drawn from q is accepted at each position, for L values of l.
        own: `[N, K, L]`, probability that the drafted token itself is. Both are 0 beyond `drafted`.
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

    Tokens of one text resemble each other, so the interval comes from resampling prompts with all their texts
    (2,000 times), or where there are fewer than ten, blocks of consecutive tokens: then it says how sure alpha is
    on these prompts, and not on others like them. With a single block it is all of [0, 1].

    Args:
        samples: What was taken at this temperature.
        which: Which of the L values of l.
        temperature: That of the samples.
        lenience: The value of l.
        generator: What to resample with.
    """
    beta, own = samples.beta[:, :, which], samples.own[:, :, which]
    place = np.arange(beta.shape[1])
    asked, there = samples.asked[:, None] > place, samples.drafted[:, None] > place
    reached = np.concatenate([np.ones((len(own), 1)), np.cumprod(own, axis=1)[:, :-1]], axis=1)  # w_i
    weight = reached * there
    rates = _ratio((weight * beta).sum(axis=0), weight.sum(axis=0))
    low, high, errors = _uncertainty(_blocks(samples.prompt), weight * beta, weight, generator)
    # A position may be proposed and yet never reached, where a token before it has no chance.
    known = int(np.argmin(np.append(weight.sum(axis=0) > 0, False)))
    possible = reached * (asked & (samples.drafted[:, None] >= place))
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
    """Return part / whole in [0, 1], 0 where there is no whole."""
    ratio: _Floats = np.divide(part, whole, out=np.zeros(whole.shape), where=whole > 0)
    return ratio.clip(0.0, 1.0)


def _blocks(prompt: _Integers) -> _Integers:
    """Return the number of the block that each sample belongs to: its prompt, or part of its prompt's text."""
    names, number = np.unique(prompt, return_inverse=True)
    if len(names) >= FEWEST_PROMPTS:
        return number.astype(np.int64)
    longest = max(_SHORTEST_BLOCK, len(prompt) // _MOST_BLOCKS)
    size = max(1, min(longest, len(prompt) // _FEWEST_BLOCKS))
    place = np.empty(len(prompt), dtype=np.int64)
    for n in range(len(names)):
        mine = number == n
        place[mine] = np.arange(mine.sum())
    # Numbered anew, so that none is left out.
    return np.unique(np.stack([number, place // size]), axis=1, return_inverse=True)[1].astype(np.int64)


def _uncertainty(
    block: _Integers, gain: _Floats, weight: _Floats, generator: np.random.Generator
) -> tuple[float, float, _Floats]:
    """Return the ends of alpha's interval, and the standard error at each position, `[K]`.

    Args:
        block: `[N]`, which block each sample belongs to.
        gain: `[N, K]`, w_i beta_i.
        weight: `[N, K]`, w_i.
        generator: What to resample with.
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
    # Resampling misses the factor n / (n - 1) of a variance that is estimated.
    return float(low), float(high), errors * math.sqrt(count / (count - 1))


def _sums(block: _Integers, count: int, values: _Floats) -> _Floats:
    """Return the sums over each block, `[count, K]`."""
    sums = np.zeros((count, values.shape[1]))
    np.add.at(sums, block, values)
    return sums


def tail(count: int) -> float:
    """Return the quantile at which a percentile interval of `count` blocks, at least 2, ends: outside of 2.5%.

    The bootstrap's own interval is too narrow with few blocks, as is one that takes a normal quantile for
    Student's; this widens it to the latter's width (Hesterberg's "expanded percentile").
    """
    z, n = NormalDist().inv_cdf(0.975), count - 1
    # Student's quantile, expanded in 1 / n: off by 1% at n = 4.
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    return NormalDist().cdf(-math.sqrt(count / n) * t)
