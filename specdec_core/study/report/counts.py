"""The counts of a run, summed over its repeats."""

from __future__ import annotations

from collections.abc import Collection
from itertools import zip_longest
from typing import TYPE_CHECKING

from specdec_core.decoding import Metrics
from specdec_core.study.report.run_fields import RunCounts

if TYPE_CHECKING:
    from specdec_core.study.run.repeats import Repeat


def run_counts(repeats: Collection[Repeat], sequences: int) -> RunCounts:
    """Return the counts of a run, and the ratios that follow from them.

    Args:
        repeats: Its repeats.
        sequences: Number of sequences that were decoded in each.
    """
    total = Metrics.total(repeat.metrics for repeat in repeats)
    measured = bool(total.row_steps)
    cpu = [repeat.cpu_seconds for repeat in repeats if repeat.cpu_seconds is not None]
    positions = zip_longest(total.verified_at, total.accepted_at, fillvalue=0)
    return RunCounts(
        tokens=total.tokens,
        target_calls=total.target_calls,
        drafted=total.drafted,
        accepted=total.accepted,
        gamma_mean=total.drafted / total.row_steps if measured else None,
        levels_mean=total.draft_calls / total.target_calls if total.tree_steps else None,
        block_efficiency=total.block_efficiency if measured else None,
        alpha=total.alpha,
        alpha_by_position=tuple(accepted / verified for verified, accepted in positions),
        verified_by_position=total.verified_at,
        steps_by_length=tuple(time.steps for time in total.times),
        deviation=total.deviation / (len(repeats) * sequences) if measured else None,
        seconds=total.seconds,
        cpu_seconds=sum(cpu) if repeats and len(cpu) == len(repeats) else None,
        draft_seconds=total.draft_seconds,
        verify_seconds=total.verify_seconds,
        forced=total.forced,
    )
