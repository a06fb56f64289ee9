"""Notes of a report on runs that were replayed on a record instead of decoded and timed. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.costs.machine import TIME_AGAIN
from specdec_core.study.config.study import BASELINE

if TYPE_CHECKING:
    from specdec_core.study.report.run_fields import ReplayedOn
    from specdec_core.study.report.summary import RunSummary

NO_PASS_SAVED = "no run needed fewer forward passes of the target than the baseline."
_MOST_NEAR = 3
"""Runs within the interval of the fastest that the verdict names."""


def replay_of(runs: Sequence[RunSummary]) -> ReplayedOn | None:
    """Return what the runs of a task were replayed on, as its baseline says; None if they were timed."""
    return next((one.replayed for one in runs if one.replayed is not None), None)


def replay_line(on: ReplayedOn) -> str:
    """Return the line that marks everything that was replayed."""
    what = f"replayed on {on.record}: no target ran"
    if on.machine is None:
        return f"{what}; speeds are not known without the times of a machine"
    return f"{what}; speeds are expected on {on.machine}, without reading prompts"


def replay_notes(runs: Sequence[RunSummary], on: ReplayedOn) -> list[str]:
    """Return the lines below a table: what was replayed, and what `±` stands for."""
    line = replay_line(on)
    texts = f"{_count(on.texts, 'text')} of {_count(on.prompts, 'prompt')}, {_count(on.tokens, 'token')}"
    notes = [f"{line[0].upper()}{line[1:]} ({texts})."]
    if on.prompts > 1:
        what = "Block efficiency" if on.machine is None else "Block efficiency, speed-up"
        notes.append(f"{what}: ± half the 95% confidence interval over texts of other prompts.")
    else:
        notes.append("The texts of one prompt: how much other texts differ is not known.")
    if noise := max((_noise(one) for one in runs), default=0.0):
        notes.append(f"Times of steps: known to ±{noise:.1%}, which these intervals leave out.")
    if any(one.replayed is not None and one.replayed.drawn is not None for one in runs):
        notes.append("Controllers of gamma were replayed with drawn acceptance, which the interval includes.")
    return notes


def replay_answer(runs: Sequence[RunSummary], on: ReplayedOn) -> str:
    """Return which run should be fastest, and the best gamma of each drafter, in a sentence or two."""
    known = [one for one in runs if one.name != BASELINE and one.status == "ok" and one.replayed is not None]
    if not known:
        return "no run could be replayed."
    timed = sorted((one for one in known if one.speed.speedup is not None), key=_speedup, reverse=True)
    if not timed:
        return _most_tokens(known)
    first, *others = timed
    if _speedup(first) <= 1:
        subject = "no run should be faster than the baseline; the nearest is"
    elif _speedup(first) <= 1 + _noise(first):
        subject = "with times as noisy as these no run is told from the baseline; the fastest is"
    else:
        subject = "the fastest run should be"
    interval = _between(first.speed.speedup_low, first.speed.speedup_high)
    text = (
        f"{subject} {first.name}: {_speedup(first):.2f}×{interval} the speed of the baseline on {on.machine}, "
        "without reading prompts."
    )
    text += _near(first, others)
    return text if _noisy(first) else text + _best_gammas(timed)


def _near(first: RunSummary, others: Sequence[RunSummary]) -> str:
    """Return the runs that cannot be told from the fastest."""
    low = first.speed.speedup_low
    if low is None:
        return ""
    near = [f"{one.name} ({_speedup(one):.2f}×)" for one in others if _speedup(one) > low / (1 + _noise(first))]
    more = f" and {len(near) - _MOST_NEAR} more" if len(near) > _MOST_NEAR else ""
    where = "its interval and the noise of the times" if _noisy(first) else "its interval"
    return f" Within {where}: {', '.join(near[:_MOST_NEAR])}{more}." if near else ""


def _most_tokens(known: Sequence[RunSummary]) -> str:
    """Return which run gives the most tokens per forward pass, where no seconds are known."""
    first = max(known, key=_efficiency)
    if _efficiency(first) <= 1:
        return NO_PASS_SAVED
    interval = "" if first.replayed is None else _between(first.replayed.low, first.replayed.high)
    return (
        f"{first.name} gives the most tokens per forward pass of the target: {_efficiency(first):.2f}{interval}. "
        "Which run is fastest depends on the machine: give it as `--machine FILE`, a file of "
        "`specdec measure --output FILE`."
    )


def replay_warnings(runs: Sequence[RunSummary]) -> list[str]:
    """Return the notes of the runs, once where those of one drafter have the same, and which times are noisy."""
    notes = list(dict.fromkeys(f"{one.drafter or one.name}: {note}" for one in runs for note in one.notes))
    noisy = {one.drafter or one.name: _noise(one) for one in runs if one.name != BASELINE and _noisy(one)}
    if not noisy:
        return notes
    known = ", ".join(f"to ±{noise:.0%} with {drafter}" for drafter, noise in noisy.items())
    return [
        *notes,
        f"the times of steps are noisy: they are known {known} only, and speed-ups that differ by less tell "
        f"nothing. {TIME_AGAIN}.",
    ]


def _best_gammas(ordered: Sequence[RunSummary]) -> str:
    """Return the best of the runs of each drafter that has several, which differ in gamma."""
    of_drafter: dict[str, list[RunSummary]] = {}
    for one in ordered:
        of_drafter.setdefault(_drafter(one.config), []).append(one)
    best = [_best_gamma(runs[0]) for runs in of_drafter.values() if len(runs) > 1]
    return f" Best gamma by drafter: {', '.join(best)}." if best else ""


def _best_gamma(best: RunSummary) -> str:
    return f"{best.drafter} {best.gamma if _speedup(best) > 1 else 'none'} ({_speedup(best):.2f}×)"


def _drafter(config: Mapping[str, Any]) -> str:
    run = config["run"]
    return json.dumps([run["drafter"], run["draft_sampling"]], sort_keys=True)


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _efficiency(one: RunSummary) -> float:
    return one.counts.block_efficiency or 0.0


def _speedup(one: RunSummary) -> float:
    return one.speed.speedup or 0.0


def _noise(one: RunSummary) -> float:
    """Return the noise of a run's times, as far as it is known."""
    return (one.replayed and one.replayed.noise) or 0.0


def _noisy(one: RunSummary) -> bool:
    return one.replayed is not None and one.replayed.noisy
