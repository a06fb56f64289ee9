"""A test of whether state was kept between repeats of a run, so that the prompts were known. Imports no torch.

The repeats of a run have the same prompts and seeds, and each begins with the drafter's `reset`. A drafter that
proposes the same each time then needs the same target calls. If the counts differ, something kept state, and a
speed-up that comes from having seen the prompts before is not a measurement.

Two causes are legitimate: a gamma controller that declares `varies`, for example because it looks at measured
times, and rounding. Rounding changes tokens before it changes counts, so only repeats with equal outputs are
compared. At a temperature above 0, other drafts may also give other tokens. They count if the baseline, in which
no plugin takes part, gave the same tokens in each repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from specdec_core.registry import nested_settings

if TYPE_CHECKING:
    from specdec_core.interface import PluginConfig
    from specdec_core.study.config.study import Run
    from specdec_core.study.run.repeats import Repeat


def uneven_calls(
    run: Run, repeats: Mapping[int, Repeat], baseline: Mapping[int, Repeat], *, greedy: bool
) -> tuple[int, ...]:
    """Return the target calls of each repeat of a run that keeps state between them; empty if it does not.

    Args:
        run: The run.
        repeats: Its repeats, by number.
        baseline: Those of the baseline.
        greedy: Whether the target decodes greedily.
    """
    known = [one for _, one in sorted(repeats.items()) if one.replayed is None]
    if (
        run.drafter is None
        or run.engine is not None
        or run.lenient
        or any(one.varies or one.failures for one in known)
    ):
        return ()
    by_output: dict[object, set[tuple[int, ...]]] = {}
    for one in known:
        by_output.setdefault((one.device, _tokens(one)), set()).add(_counts(one))
    differ = any(len(counts) > 1 for counts in by_output.values())
    if not differ and not greedy and not _nests_gamma(run.drafter):
        same_device = len({one.device for one in known}) == 1
        differ = same_device and len(by_output) > 1 and len({_tokens(one) for one in baseline.values()}) == 1
    return tuple(one.metrics.target_calls for one in known) if differ else ()


def _tokens(repeat: Repeat) -> tuple[tuple[int, ...], ...]:
    return tuple(one.tokens for one in repeat.outputs)


def _counts(repeat: Repeat) -> tuple[int, ...]:
    metrics = repeat.metrics
    return metrics.target_calls, metrics.drafted, metrics.accepted


def _nests_gamma(config: PluginConfig) -> bool:
    """Return whether a drafter holds its own gamma controller, which may vary."""
    nested = list(nested_settings(config))
    return any(one.marker.kind == "gamma" or _nests_gamma(one.config) for one in nested)
