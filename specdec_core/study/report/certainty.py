"""The certainty of the numbers of a table: which rest on little, and the meaning of `±`. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from specdec_core.study.report.expectation import MIN_COUNT
from specdec_core.study.report.replayed import replay_notes, replay_of
from specdec_core.theory.intervals import MAX_RANGE

if TYPE_CHECKING:
    from specdec_core.study.report.summary import RunSummary


def untimed(summaries: Sequence[RunSummary]) -> bool:
    """Return whether the runs of a task were decoded without timing them, as their study says."""
    return bool(summaries) and summaries[0].config.get("timing") is False


def few_verified(summary: RunSummary) -> bool:
    """Return whether a run's acceptance rate rests on few tokens. Every repeat verifies the same ones."""
    verified = sum(summary.counts.verified_by_position or ())
    return summary.counts.alpha is not None and verified < MIN_COUNT * summary.repeats


def few_steps(summary: RunSummary) -> bool:
    """Return whether c, and what is expected of a run, rest on few steps with a draft."""
    timed = sum((summary.counts.steps_by_length or ())[1:])
    return summary.expected.speedup_expected is not None and summary.drafter is not None and timed < MIN_COUNT


def marked(cell: str, few: bool) -> str:
    """Return the cell of a table with a mark if it is a number that rests on few measurements."""
    return f"~{cell}" if few and cell[:1].isdigit() else cell


def certainty_notes(summaries: Sequence[RunSummary]) -> list[str]:
    """Return how often the runs of a task were timed, what their spread is, and what the mark means."""
    if (on := replay_of(summaries)) is not None:
        return replay_notes(summaries, on) + _few(summaries)
    if untimed(summaries):
        return ["Not timed: acceptance alone was measured.", *_remembering(summaries), *_few(summaries)]
    repeats = max((summary.repeats for summary in summaries), default=0)
    notes = ["Wall time of one repeat: no spread is known."]
    if repeats > 1:
        notes = [
            f"Wall time: median of {repeats} repeats ± half their range; runs that overlap are not told apart."
        ]
    if repeats > MAX_RANGE:
        notes.append("Speed-up: ± half the 95% confidence interval of the median.")
    setting = summaries[0].config.get("repeats") if summaries else None
    if isinstance(setting, Mapping):
        spread, most = setting["spread"], setting["max"]
        notes.append(f"Repeated until every speed-up was known to ±{spread:.0%}, {most} times at most.")
    return notes + _remembering(summaries) + _few(summaries)


def _remembering(summaries: Sequence[RunSummary]) -> list[str]:
    """Return which runs remember earlier requests, and what they knew when a repeat began."""
    names = ", ".join(one.name for one in summaries if one.remembers)
    count = summaries[0].config.get("warmup", {}).get("count", 0) if summaries else 0
    prompts = f"{count} warm-up prompt{'' if count == 1 else 's'}"
    if not names:
        return [f"No drafter remembers earlier requests: the {prompts} were not decoded."] if count else []
    knew = f"with what {prompts} taught" if count else "with nothing known (`warmup_prompts` is not set)"
    return [f"Remembers earlier requests: {names}. Each repeat began {knew}."]


def _few(summaries: Sequence[RunSummary]) -> list[str]:
    if not any(few_verified(one) or few_steps(one) for one in summaries):
        return []
    timed = "" if replay_of(summaries) else "timed "
    return [f"~: rests on fewer than {MIN_COUNT} verified draft tokens, or {timed}steps with a draft."]
