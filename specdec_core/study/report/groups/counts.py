"""The counts of a run by conversation, and its times by batch, from its repeats. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from specdec_core.study.run.repeats import Repeat

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RunTotals:
    """The counts of a run for N conversations, most of a single prompt, and its times for U batches in K repeats.

    Attributes:
        counts: `[N, 4]` float64, over all repeats: tokens, steps, accepted and verified draft tokens. NaN where a
            count is not known.
        tokens: `[U, K]` float64, the tokens of each batch.
        seconds: `[U, K]` float64, its wall time; NaN where nothing was timed.
    """

    counts: Floats
    tokens: Floats
    seconds: Floats


def run_totals(repeats: Collection[Repeat], batches: Sequence[Sequence[range]]) -> RunTotals:
    """Return the counts and times of a run.

    Turns of a batch are decoded one after the other, and each takes as long as its longest request.

    Args:
        repeats: Its repeats, at least one.
        batches: The conversations of each batch, and of each conversation the numbers of its prompts, from 0.
    """
    talks = sorted((talk for batch in batches for talk in batch), key=lambda talk: talk.start)
    count = sum(map(len, talks))
    each = [_counts(repeat, count) for repeat in repeats]
    seconds = [_seconds(repeat, count) for repeat in repeats]
    tokens = [[sum(one[list(talk), 0].sum() for talk in batch) for one in each] for batch in batches]
    return RunTotals(
        counts=np.array([np.sum([one[list(talk)] for one in each], axis=(0, 1)) for talk in talks]),
        tokens=np.array(tokens, dtype=np.float64),
        seconds=np.array([[_batch_seconds(one, batch) for one in seconds] for batch in batches]),
    )


def _batch_seconds(seconds: Floats, batch: Sequence[range]) -> float:
    turns = ([talk[turn] for talk in batch if turn < len(talk)] for turn in range(max(map(len, batch))))
    return float(sum(seconds[together].max() for together in turns))


def _counts(repeat: Repeat, count: int) -> Floats:
    """Return `[N, 4]`, the counts of one repeat."""
    found = np.full((count, 4), np.nan)
    if repeat.by_prompt:
        for one in repeat.by_prompt:
            found[one.number] = one.tokens, one.steps, one.accepted, one.verified
        return found
    for number, output in enumerate(repeat.outputs):
        found[number, 0] = output.num_tokens
        if (metrics := output.metrics) is not None:
            accepted = metrics.num_accepted_draft_tokens
            found[number, 1:3] = metrics.steps, accepted
            if metrics.rejected is not None:
                found[number, 3] = accepted + metrics.rejected
    return found


def _seconds(repeat: Repeat, count: int) -> Floats:
    """Return `[N]`, the time of each prompt."""
    found = np.full(count, np.nan)
    known = [(one.number, one.seconds) for one in repeat.by_prompt] or list(enumerate(repeat.request_seconds))
    for number, seconds in known:
        found[number] = np.nan if seconds is None else seconds
    return found
