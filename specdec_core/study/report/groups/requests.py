"""The quality and the percentiles of each group of prompts of a run. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specdec_core.study.config.grouping import belongs
from specdec_core.study.report.quality import METRICS, Quality, assess_repeats
from specdec_core.study.report.requests import run_requests

if TYPE_CHECKING:
    from specdec_core.study.config.prompts import PromptText
    from specdec_core.study.report.groups.figures import GroupSummary
    from specdec_core.study.run.repeats import Repeat


def with_requests(
    groups: Sequence[GroupSummary],
    prompts: Sequence[PromptText],
    repeats: Mapping[int, Repeat],
    baseline: Mapping[int, Repeat],
) -> Iterator[GroupSummary]:
    """Yield the findings about each group with its quality and percentiles. Scores are not tested.

    Args:
        groups: The findings so far.
        prompts: The prompts of the task.
        repeats: The repeats of the run, by number.
        baseline: Those of the baseline.
    """
    for group in groups:
        numbers = [number for number, prompt in enumerate(prompts) if belongs(prompt.group, group.group)]
        own, others = ({n: _only(one, numbers) for n, one in each.items()} for each in (repeats, baseline))
        if any(one.replayed for one in own.values()):
            yield group
            continue
        outputs, expected = ({n: one.outputs for n, one in each.items()} for each in (own, others))
        references = [prompts[number].references for number in numbers]
        quality = assess_repeats(outputs, expected, references, greedy=True)
        known = None if quality is None else dict(_known(quality))
        yield replace(group, quality=known, percentiles=run_requests(own).percentiles)


def _only(repeat: Repeat, numbers: Sequence[int]) -> Repeat:
    """Return a repeat with the outputs and times of some prompts."""
    outputs = tuple(repeat.outputs[number] for number in numbers if number < len(repeat.outputs))
    seconds = tuple(repeat.request_seconds[number] for number in numbers if number < len(repeat.request_seconds))
    return replace(repeat, outputs=outputs, request_seconds=seconds)


def _known(quality: Quality) -> Iterator[tuple[str, float]]:
    for name in ("exact", *METRICS):
        if (value := getattr(quality, name)) is not None:
            yield name, value
