"""Figures of the requests of a run: over all of their steps, and percentiles over the requests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from specdec_core.decoding.counts import RequestMetrics
from specdec_core.study.run.finished_repeats import Output, Repeat

_PERCENTILES = (10, 50, 90, 95, 99)


def run_requests(repeats: Mapping[int, Repeat], counted: int | None = None) -> dict[str, Any]:
    """Return the figures of the requests of a run, by the fields of `RunSummary`, from its finished repeats.

    Args:
        repeats: The repeats.
        counted: Number of new tokens after which no step begins that counts; None if all do.
    """
    first = next(iter(repeats.values()), None)
    each = [] if first is None else [one.metrics for one in first.outputs if one.metrics is not None]
    each = each if counted is None else [one.split(0, counted)[0] for one in each]
    drafts = [one for one in each if one.num_spec_tokens]
    seconds = (one for repeat in repeats.values() for one in repeat.request_seconds)
    values = {
        "mean_acceptance_length": [one.mean_acceptance_length for one in drafts],
        "draft_acceptance_rate": [one.draft_acceptance_rate for one in drafts],
        "seconds": [one for one in seconds if one],  # a turn that did not fit took no time
    }
    return {
        "speculative_decoding": over_all_steps(drafts).to_plain() if drafts else None,
        "percentiles": {name: _percentiles(each) for name, each in values.items() if each},
        "thinking": None if first is None else _thinking(first.outputs),
    }


def _thinking(outputs: Iterable[Output]) -> dict[str, Any] | None:
    """Return the figures inside and outside of the thinking parts; None if nothing thinks, or nothing drafts."""
    known = [one for one in outputs if one.metrics is not None and one.metrics.per_step_begin]
    if not any(one.thinking for one in known):
        return None
    parts = [one.metrics.split(*(one.thinking or (0, 0))) for one in known if one.metrics is not None]
    inside, outside = zip(*parts, strict=True)
    return {"inside": over_all_steps(inside).to_plain(), "outside": over_all_steps(outside).to_plain()}


def over_all_steps(requests: Iterable[RequestMetrics]) -> RequestMetrics:
    """Return the counts of some requests as if they were one, so that every step weighs the same."""
    each = list(requests)
    return RequestMetrics(
        max((one.num_spec_tokens for one in each), default=0),
        sum(one.steps for one in each),
        tuple(drafted for one in each for drafted in one.per_step_drafted),
        tuple(accepted for one in each for accepted in one.per_step_accepted),
        sum(one.rejected or 0 for one in each),
    )


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    found = dict(zip(_PERCENTILES, np.percentile(values, _PERCENTILES), strict=True))
    ends = {"mean": float(np.mean(values)), "min": min(values), "max": max(values)}
    return {**ends, **{f"p{percent}": float(value) for percent, value in found.items()}}
