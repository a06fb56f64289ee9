"""The certainty of the numbers of a table: which rest on little, and the meaning of `±`. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from specdec_core.study.report.expectation import MIN_COUNT
from specdec_core.theory.intervals import MAX_RANGE

if TYPE_CHECKING:
    from specdec_core.study.report.summary import RunSummary
    from specdec_core.study.run.finished_repeats import ReplayedOn


def untimed(summaries: Sequence[RunSummary]) -> bool:
    """Return whether the runs of a task were decoded without timing them, as their study says."""
    return bool(summaries) and summaries[0].config.get("timing") is False


def replay_of(runs: Sequence[RunSummary]) -> ReplayedOn | None:
    """Return what the runs of a task were replayed on, as its baseline says; None if they were decoded."""
    return next((one.replayed for one in runs if one.replayed is not None), None)


def few_verified(summary: RunSummary) -> bool:
    """Return whether a run's acceptance rate rests on few tokens. Every repeat verifies the same ones."""
    return summary.alpha is not None and sum(summary.verified_by_position) < MIN_COUNT * summary.repeats


def few_steps(summary: RunSummary) -> bool:
    """Return whether c, and what is expected of a run, rest on few steps with a draft."""
    timed = sum(summary.steps_by_length[1:])
    return summary.speedup_expected is not None and summary.drafter is not None and timed < MIN_COUNT


def marked(cell: str, few: bool) -> str:
    """Return the cell of a table with a mark if it is a number that rests on few measurements."""
    return f"~{cell}" if few and cell[:1].isdigit() else cell


def replay_line(on: ReplayedOn) -> str:
    """Return the line that marks everything that was replayed."""
    speeds = "speeds are not known without the times of a machine"
    if on.machine is not None:
        speeds = f"speeds are expected on {on.machine}, without reading prompts"
    return f"Replayed on {on.record}: no target ran; {speeds}."


def certainty_notes(summaries: Sequence[RunSummary]) -> list[str]:
    """Return how often the runs of a task were timed, what their spread is, and what the mark means."""
    notes = list(_spread(summaries))
    if any(few_verified(one) or few_steps(one) for one in summaries):
        notes.append(f"~: rests on fewer than {MIN_COUNT} verified draft tokens, or steps with a draft.")
    return notes


def _spread(summaries: Sequence[RunSummary]) -> Iterator[str]:
    if (on := replay_of(summaries)) is not None:
        yield replay_line(on)
        yield f"Texts: {on.texts:,}, of {on.prompts:,} prompts, with {on.tokens:,} tokens."
        if on.prompts > 1:
            yield "± half the 95% confidence interval over texts of other prompts."
        if noise := max((one.replayed.noise or 0.0 for one in summaries if one.replayed), default=0.0):
            yield f"Times of steps are known to ±{noise:.1%}, which these intervals leave out."
        return
    if untimed(summaries):
        yield "Not timed: acceptance alone was measured."
    elif (repeats := max((summary.repeats for summary in summaries), default=0)) > 1:
        yield f"Wall time: median of {repeats} repeats ± half their range; runs that overlap are not told apart."
        if repeats > MAX_RANGE:
            yield "Speed-up: ± half the 95% confidence interval of the median."
    else:
        yield "Wall time of one repeat: no spread is known."
    remembering = [one.name for one in summaries if one.remembers]
    if remembering:
        count = summaries[0].config.get("warmup", {}).get("count", 0)
        yield f"Remembers earlier requests: {', '.join(remembering)}. Warm-up prompts before each repeat: {count}."
    setting = summaries[0].config.get("repeats") if summaries else None
    if isinstance(setting, Mapping):
        spread, most = setting["spread"], setting["max"]
        yield f"Repeated until every speed-up was known to ±{spread:.0%}, {most} times at most."
