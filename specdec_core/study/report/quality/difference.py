"""Tests of whether two runs differ in quality by more than chance. Importing this imports no torch.

The difference of two scores is tested by swapping the outputs of the two runs, prompt by prompt. If both come from
one distribution, swapping changes nothing but noise; the p-value is how often a swap gives a difference at least
as large as the observed one. The confidence interval comes from resampling prompts.

sacrebleu's `PairedTest` is not used: it calls two runs with identical outputs different, as it only counts
differences above the observed one, and it computes one resample at a time.

References:
    S. Riezler, J. Maxwell: On Some Pitfalls in Automatic Evaluation and Significance Testing for MT, 2005, for the
        test (approximate randomization, sign flips of paired outputs).
    B. Phipson, G. Smyth: Permutation P-values Should Never Be Zero, 2010 (arXiv 1603.05766), for counting the
        observed difference among the resamples.
    S. Holm: A Simple Sequentially Rejective Multiple Test Procedure, 1979.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_core.study.report.quality.scores import Statistics
from specdec_core.study.report.resampling import MIN_PROMPTS, RESAMPLES, SEED, resampled_interval, resamples

TESTED = ("bleu", "chrf", "rougeL")
"""The metrics that are tested. ROUGE-1 and ROUGE-2 nearly repeat ROUGE-L, and more tests of one question only
raise more false alarms."""
_SWAPS = 9999
_ALL_WAYS = 13
"""Up to this many prompts, all 2^n swaps are tried."""
_CELLS = 4_000_000
"""Signs in memory at once: 32 MB."""
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A score of a run minus that of the baseline.

    Attributes:
        difference: In points of the scale from 0 to 100; negative if the run is worse.
        low: Lower end of its 95% confidence interval over prompts like these; None with too few prompts.
        high: Upper end of the interval.
        p: Probability of a difference at least this large, in either direction, if both outputs of every prompt
            come from one distribution; None with fewer than `MIN_PROMPTS` prompts.
    """

    difference: float
    low: float | None
    high: float | None
    p: float | None


def differences(run: Mapping[str, Statistics], baseline: Mapping[str, Statistics]) -> dict[str, Difference]:
    """Return the difference between a run and the baseline for each metric in `TESTED`.

    Deterministic: swaps and resamples are seeded, and the same for all metrics and runs.

    Args:
        run: Statistics of the run's outputs.
        baseline: Statistics of the baseline's outputs for the same prompts, in the same order.
    """
    return {name: _difference(run[name], baseline[name]) for name in TESTED}


def how_tested(prompts: int) -> str:
    """Return the signature of the test on this many prompts, in the format of sacrebleu."""
    swaps = f"all{2**prompts}" if prompts <= _ALL_WAYS else f"{_SWAPS}"
    return f"test:paired-swaps|swaps:{swaps}|sides:2|bootstrap:{RESAMPLES}|seed:{SEED}"


def holm(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return p-values adjusted for multiple comparisons by Holm's method.

    If runs with an adjusted value below 0.05 are called different, the probability of any false alarm is at most
    5%, however the tests depend on each other. The runs of a study share the outputs of the baseline, which makes
    this conservative.

    Args:
        p_values: The p-values of all comparisons; None for missing ones, which stay None and are not counted.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    lowest = 0.0
    for rank, (p, index) in enumerate(known):
        lowest = max(lowest, min(1.0, (len(known) - rank) * p))
        adjusted[index] = lowest
    return tuple(adjusted)


def _difference(run: Statistics, baseline: Statistics) -> Difference:
    """Return the difference in one metric."""
    observed = float(_gap(run, run.rows.sum(axis=0), baseline.rows.sum(axis=0)))
    if len(run.rows) < MIN_PROMPTS:
        return Difference(observed, None, None, None)
    low, high = _interval(run, baseline)
    return Difference(observed, min(low, observed), max(high, observed), _p_value(run, baseline, observed))


def _gap(metric: Statistics, run: _Floats, baseline: _Floats) -> _Floats:
    """Return the difference of scores, rounded so that it does not depend on the order of summation."""
    return np.round(metric.value(run) - metric.value(baseline), 9)


def _p_value(run: Statistics, baseline: Statistics, observed: float) -> float:
    """Return the share of swaps that give a difference at least as large as the observed one."""
    middle = (run.rows + baseline.rows).sum(axis=0) / 2
    half = (run.rows - baseline.rows) / 2
    count = total = 0
    for signs in _signs(len(half)):
        apart = signs @ half
        count += int((np.abs(_gap(run, middle + apart, middle - apart)) >= abs(observed)).sum())
        total += len(signs)
    # All swaps include the observed one; a sample of them does not.
    return count / total if len(half) <= _ALL_WAYS else (count + 1) / (total + 1)


def _signs(prompts: int) -> Iterator[_Floats]:
    """Yield swaps `[n, N]`, -1 for prompts that are swapped and 1 for the others; all of them if they are few."""
    if prompts <= _ALL_WAYS:
        ways = np.arange(2**prompts)[:, None] >> np.arange(prompts)
        yield (1 - 2 * (ways & 1)).astype(np.float64)
        return
    generator, left = np.random.default_rng(SEED), _SWAPS
    while left:
        n = min(left, max(1, _CELLS // prompts))
        yield (1 - 2 * generator.integers(0, 2, size=(n, prompts), dtype=np.int8)).astype(np.float64)
        left -= n


def _interval(run: Statistics, baseline: Statistics) -> tuple[float, float]:
    """Return the ends of a 95% interval from resampled prompts, each with the outputs of both runs."""
    count = len(run.rows)
    times = resamples(count)
    return resampled_interval(_gap(run, times @ run.rows, times @ baseline.rows), count)
