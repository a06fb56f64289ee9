"""Whether two runs differ in quality by more than chance. Importing this imports no torch.

The difference of two scores is tested by swapping the outputs of both runs, prompt by prompt: if both are drawn
from one distribution, it does not matter which of the two is called the run's. How often such swaps alone make a
difference as large as the one seen is the p-value. The interval comes from resampling prompts.

sacrebleu's own `PairedTest` is not used: it calls two runs with the same outputs different (it counts differences
above the one seen, and none is above 0), and computes one resample at a time.

References:
    S. Riezler, J. Maxwell: On Some Pitfalls in Automatic Evaluation and Significance Testing for MT, 2005, for the
        test (approximate randomization, sign flips of paired outputs).
    B. Phipson, G. Smyth: Permutation P-values Should Never Be Zero, 2010 (arXiv 1603.05766), for counting what was
        seen among the resamples.
    S. Holm: A Simple Sequentially Rejective Multiple Test Procedure, 1979.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_core.measurement.estimate import tail
from specdec_core.study.quality.scores import Counted

TESTED = ("bleu", "chrf", "rougeL")
"""The metrics that runs are compared by. ROUGE-1 and ROUGE-2 say nearly the same as ROUGE-L: more tests of one
question only make more false alarms."""
FEWEST_PROMPTS = 6
"""With n prompts, the smallest p there can be is 2 / 2^n, since of 2^n ways to swap at least two are as far from 0
as what was seen: all as they are, and all swapped. With 5 prompts that is 0.06."""

RESAMPLES = 2000
"""How often prompts are drawn anew for an interval."""
_SWAPS = 9999
_ALL_WAYS = 13
"""Up to this many prompts, all 2^n ways to swap are tried, fewer than 9,999."""
_SEED = 0
_CELLS = 4_000_000
"""Signs held at once: 32 MB."""
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A score of a run less that of plain decoding.

    Attributes:
        difference: In points of the scale from 0 to 100; below 0, the run is worse.
        low: Lower end of its 95% confidence interval over prompts like these; None with too few prompts.
        high: Its upper end.
        p: The probability of a difference this large or larger, in either direction, if both outputs of every
            prompt are draws from one distribution; None with fewer than `FEWEST_PROMPTS` prompts.
    """

    difference: float
    low: float | None
    high: float | None
    p: float | None


def differences(run: Mapping[str, Counted], plain: Mapping[str, Counted]) -> dict[str, Difference]:
    """Return how a run differs from plain decoding, for each metric in `TESTED`.

    The same call gives the same numbers: swaps and resamples are seeded, and the same for all metrics and runs.

    Args:
        run: What was counted in the run's outputs.
        plain: What was counted in those of plain decoding, of the same prompts in the same order.
    """
    return {name: _difference(run[name], plain[name]) for name in TESTED}


def how_tested(prompts: int) -> str:
    """Return what exactly is done to test the differences on this many prompts, in the manner of sacrebleu."""
    swaps = f"all{2**prompts}" if prompts <= _ALL_WAYS else f"{_SWAPS}"
    return f"test:paired-swaps|swaps:{swaps}|sides:2|bootstrap:{RESAMPLES}|seed:{_SEED}"


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return p-values adjusted for there being several, by Holm's method.

    If those with an adjusted value below 0.05 are called different, the probability that any of them is not is at
    most 5%, whatever the tests have to do with each other. Runs of one study share the outputs of plain
    decoding, and metrics resemble each other, so this is on the safe side.

    Args:
        p_values: Of all comparisons of a study; None where there was no test, which stays None and does not count.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, index) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * p))
        adjusted[index] = least
    return tuple(adjusted)


def _difference(run: Counted, plain: Counted) -> Difference:
    """Return the difference in one metric."""
    seen = float(_gap(run, run.rows.sum(axis=0), plain.rows.sum(axis=0)))
    if len(run.rows) < FEWEST_PROMPTS:
        return Difference(seen, None, None, None)
    low, high = _interval(run, plain)
    return Difference(seen, min(low, seen), max(high, seen), _p_value(run, plain, seen))


def _gap(metric: Counted, run: _Floats, plain: _Floats) -> _Floats:
    """Return the difference of scores, rounded so that sums taken in another order give the same."""
    return np.round(metric.value(run) - metric.value(plain), 9)


def _p_value(run: Counted, plain: Counted, seen: float) -> float:
    """Return the share of ways to swap outputs that give a difference at least as large as the one seen."""
    middle = (run.rows + plain.rows).sum(axis=0) / 2
    half = (run.rows - plain.rows) / 2
    count = total = 0
    for signs in _signs(len(half)):
        apart = signs @ half
        count += int((np.abs(_gap(run, middle + apart, middle - apart)) >= abs(seen)).sum())
        total += len(signs)
    # The way it was seen is one of all ways; to a sample of them it is added.
    return count / total if len(half) <= _ALL_WAYS else (count + 1) / (total + 1)


def _signs(prompts: int) -> Iterator[_Floats]:
    """Yield which prompts are swapped, -1, and which are not, 1, `[some, N]`: all ways where they are few."""
    if prompts <= _ALL_WAYS:
        ways = np.arange(2**prompts)[:, None] >> np.arange(prompts)
        yield (1 - 2 * (ways & 1)).astype(np.float64)
        return
    generator, left = np.random.default_rng(_SEED), _SWAPS
    while left:
        some = min(left, max(1, _CELLS // prompts))
        yield (1 - 2 * generator.integers(0, 2, size=(some, prompts), dtype=np.int8)).astype(np.float64)
        left -= some


def _interval(run: Counted, plain: Counted) -> tuple[float, float]:
    """Return the ends of a 95% interval: prompts are resampled, each with the outputs of both."""
    count = len(run.rows)
    generator = np.random.default_rng(_SEED)
    times = generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(np.float64)
    gaps = _gap(run, times @ run.rows, times @ plain.rows)
    low, high = np.quantile(gaps, [tail(count), 1 - tail(count)])
    return float(low), float(high)
