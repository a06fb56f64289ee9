"""The verdict on the runs of a task: which is fastest, as far as the timings tell. Imports no torch.

A timing counts only for what it can show:

- Two runs are told apart if the intervals of their speed-ups do not overlap (`speedup_low`, `speedup_high`). Up to
  eight repeats the intervals are the ranges of the repeats, and ranges that do not overlap are the most extreme
  outcome of the Mann-Whitney test: with three repeats, two equally fast runs come apart like this once in ten
  times.
- Fewer than three repeats tell nothing apart.
- A run that exceeds its bound (`speedup_bound`) was not timed correctly, and is not ranked.
- A run that failed is not ranked.
- A run that keeps state between repeats without declaring it (`uneven_calls`) is not ranked.

References:
    H. B. Mann, D. R. Whitney: On a Test of Whether one of Two Random Variables is Stochastically Larger than the
    Other, Annals of Mathematical Statistics 18, 1947.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.study.config.study import BASELINE
from specdec_core.study.report.certainty import untimed
from specdec_core.study.report.replayed import NO_PASS_SAVED, replay_answer, replay_of, replay_warnings
from specdec_core.study.report.tables import departures

if TYPE_CHECKING:
    from specdec_core.study.report.summary import RunSummary

MIN_REPEATS = 3
"""Fewer repeats tell no runs apart."""
MAX_EXCESS = 1.03
"""A speed-up above the run's bound by more than this factor is reported; below, it is the noise of any clock."""
MAX_WAITING = 0.1
"""A larger share of the wall time in which the decoding thread waited for a core is reported."""

_SHOWN = 10
"""Counts of at most so many repeats are listed."""

_AGAIN = "Time the study again on a quiet machine."


@dataclass(frozen=True)
class Verdict:
    """The verdict of a study on the runs of a task.

    Attributes:
        answer: Which run is fastest, or which cannot be told apart, in a sentence or two.
        errors: A line for each run that was abandoned, with the reason.
        failures: A line for each way in which a plugin failed, with its file and line.
        departures: A line for each lossless run at temperature 0 whose outputs are not those of the baseline.
        warnings: Lines about plugins that were overruled, and about timings that are too noisy.
    """

    answer: str
    errors: tuple[str, ...]
    failures: tuple[str, ...]
    departures: tuple[str, ...]
    warnings: tuple[str, ...]


def verdict(runs: Sequence[RunSummary]) -> Verdict:
    """Return the verdict on a task.

    Args:
        runs: The summaries of its runs, including the baseline.
    """
    errors = tuple(f"{one.name} failed: {_sentence(one.error)}" for one in runs if one.error is not None)
    failures = tuple(f"{one.name} failed: {cause}" for one in runs for cause in _causes(one))
    if (on := replay_of(runs)) is not None:  # nothing was timed
        return Verdict(replay_answer(runs, on), errors, failures, (), tuple(replay_warnings(runs)))
    noise = (*_unclear(runs), *_unsettled(runs), *_busy(runs))
    overruled = (f"{one.name}: {note}" for one in runs for note in one.notes)
    uneven = (_uneven(one) for one in runs if one.uneven_calls)
    warnings = (*overruled, *uneven, *map(_too_fast, filter(exceeds_bound, runs)), *noise)
    return Verdict(_answer(runs), errors, failures, tuple(departures(runs)), warnings)


def exit_code(summaries: Iterable[RunSummary]) -> int:
    """Return the exit code of `specdec compare`.

    Returns:
        2 if a run was abandoned; 1 if a plugin failed while it decoded, or a lossless run at temperature 0 departs
        from the baseline; else 0.
    """
    runs = list(summaries)
    if any(one.status == "error" for one in runs):
        return 2
    return 1 if any(one.status != "ok" for one in runs) or departures(runs) else 0


def fastest(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the fastest run of a task, then those that cannot be told from it, in descending order.

    Args:
        runs: The summaries of its runs, including the baseline, which is not ranked.

    Returns:
        With too few repeats, only the run with the highest speed-up; empty if no run can be ranked.
    """
    ranked = _ranked(runs)
    return _best(ranked) if ranked else []


def exceeds_bound(one: RunSummary) -> bool:
    """Return whether a run was measured faster than its tokens per target call allow."""
    if one.replayed is not None or one.uneven_calls:
        return False  # its speed is not measured, or means nothing
    speedup, bound = one.speed.speedup, one.speed.speedup_bound
    return speedup is not None and bound is not None and speedup > MAX_EXCESS * bound


def _causes(one: RunSummary) -> list[str]:
    """Return how the plugins of a run failed, each way once."""
    found = []
    for (plugin, where, message), times in _grouped(one.failures).items():
        location = f" at {where}" if where else ""
        often = "" if times == 1 else f" ({times} times)"
        found.append(f"{plugin}{location}{often}: {message} No token was lost, but the run is not compared.")
    return found


def _grouped(failures: Sequence[Mapping[str, object]]) -> dict[tuple[str, str, str], int]:
    """Return how often a plugin failed in the same way, by its class, location and message."""
    times: dict[tuple[str, str, str], int] = {}
    for one in failures:
        key = (str(one["plugin"]), str(one["where"]), _sentence(str(one["message"])))
        times[key] = times.get(key, 0) + int(str(one["times"]))
    return times


def _sentence(message: str) -> str:
    return message if message.endswith((".", "!", "?")) else f"{message}."


def _measured(runs: Sequence[RunSummary]) -> list[RunSummary]:
    compared = (one for one in runs if one.name != BASELINE and one.status == "ok")
    return [one for one in compared if one.speed.speedup is not None]


def _ranked(runs: Sequence[RunSummary]) -> list[RunSummary]:
    return [one for one in _measured(runs) if not (exceeds_bound(one) or one.uneven_calls)]


def _answer(runs: Sequence[RunSummary]) -> str:
    if untimed(runs):
        return _most_tokens(runs)
    if not _measured(runs):
        return "no run was measured except the baseline."
    ranked = _ranked(runs)
    if not ranked:
        return "no run can be ranked; the warnings say why."
    text = _fastest(ranked, "run")
    lossless = [one for one in ranked if one.lossless]
    if lossless and not all(one.lossless for one in _best(ranked)):
        found = " ".join(sorted({_lossy(one) for one in ranked if not one.lossless}))
        ways = {"lenient": "lenience", "lossy": "lossy rules"}.get(found, "lenience and lossy rules")
        text += f" Without {ways}, {_fastest(lossless, 'lossless run')}"
    return text


def _most_tokens(runs: Sequence[RunSummary]) -> str:
    """Return which run has the most tokens per forward pass, where nothing was timed."""
    known = [one for one in runs if one.name != BASELINE and one.status == "ok" and one.repeats]
    if not known:
        return "no run was measured except the baseline."
    first = max(known, key=lambda one: one.counts.block_efficiency or 0.0)
    if (first.counts.block_efficiency or 0.0) <= 1:
        return NO_PASS_SAVED
    return (
        f"{first.name}{_remark(first)} gives the most tokens per forward pass of the target: "
        f"{first.counts.block_efficiency:.2f}. Which run is fastest takes a study with `timing: true`."
    )


def _best(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the run with the highest speed-up and those that cannot be told from it, in descending order."""
    ordered = sorted(runs, key=_speedup, reverse=True)
    first = ordered[0].speed
    if first.speedup_low is None or ordered[0].repeats < MIN_REPEATS:
        return ordered[:1]
    return [one for one in ordered if (one.speed.speedup_high or 0.0) >= first.speedup_low]


def _fastest(runs: Sequence[RunSummary], kind: str) -> str:
    """Return which of some runs is fastest, in a sentence or two."""
    best = _best(runs)
    first = best[0]
    about = f"{first.name}, {_gain(first)}{_exactness(first)}"
    if _speedup(first) <= 1:
        subject = f"no {kind} was faster than the baseline; the nearest"
    elif first.repeats < MIN_REPEATS:
        subject = "the highest speed-up"
        about = f"that of {about}"
    elif all((one.speed.speedup_low or 0.0) <= 1 for one in best):
        subject = f"no {kind} is clearly faster than the baseline; the fastest"
    else:
        subject = f"the fastest {kind}"
    if first.repeats < MIN_REPEATS:
        return f"{subject} is {about}. {_too_few(first.repeats)}"
    if len(best) == 1:
        return f"{subject} is {about}."
    names = [f"{one.name} ({_speedup(one):.2f}×{_remark(one)})" for one in best]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{subject} is one of {listed}: their repeats overlap, so they cannot be told apart."


def _remark(one: RunSummary) -> str:
    if departures([one]):
        return ", departs from the baseline"
    return "" if one.lossless else f", {_lossy(one)}"


def _lossy(one: RunSummary) -> str:
    """Return why a run is not lossless: lenience, or else its rule."""
    return "lossy" if one.lenience == 1 else "lenient"


def _too_few(repeats: int) -> str:
    known = (
        "One repeat: no spread is known" if repeats == 1 else f"{repeats} repeats show too little of the spread"
    )
    return f"{known}, so no run is called the fastest; set `repeats` to {MIN_REPEATS} or more."


def _too_fast(one: RunSummary) -> str:
    return (
        f"{one.name}: the timing is not to be trusted. {_speedup(one):.2f}× was measured, but its tokens per "
        f"target call allow {one.speed.speedup_bound:.2f}× at most, unless a target call with a draft takes less "
        f"time than one without. {_AGAIN}"
    )


def _uneven(one: RunSummary) -> str:
    calls = ", ".join(map(str, one.uneven_calls[:_SHOWN])) + (", ..." if len(one.uneven_calls) > _SHOWN else "")
    same = "tokens" if one.config["sampling"]["temperature"] == 0 else "seeds"
    what = f"{one.name}: target calls differ between repeats ({calls})"
    if len(set(one.uneven_calls)) == 1:
        what = f"{one.name}: drafts differ between repeats"
    if one.remembers:
        return (
            f"{what} although the {same} are the same: the drafter declares `remembers`, but after `reset()` it "
            "does not draft as a new one would. The run is not ranked."
        )
    return (
        f"{what} although the {same} are the same: the drafter keeps state between repeats, so it has seen the "
        "prompts before. The run is not ranked. Declare `remembers` and forget in `reset()`; a gamma controller "
        "that looks at times declares `varies`."
    )


def _unclear(runs: Sequence[RunSummary]) -> list[str]:
    """Return which runs cannot be told from the baseline."""
    found = [one for one in runs if one.name != BASELINE and one.repeats >= MIN_REPEATS and _straddles(one)]
    if not found:
        return []
    ranges = [f"{one.name} ({one.speed.speedup_low:.2f}× to {one.speed.speedup_high:.2f}×)" for one in found]
    return [f"not to be told from the baseline, as repeats lie on both sides of it: {', '.join(ranges)}."]


def _straddles(one: RunSummary) -> bool:
    low, high = one.speed.speedup_low, one.speed.speedup_high
    return low is not None and high is not None and low <= 1 <= high


def _unsettled(runs: Sequence[RunSummary]) -> list[str]:
    """Return which runs need more repeats than the study allows to reach the spread that it asks for."""
    asked = runs[0].config.get("repeats") if runs else None
    if not isinstance(asked, Mapping):
        return []
    found = {one.name: _spread(one) for one in runs if one.repeats >= asked["max"]}
    wide = [f"{name} (±{spread:.0%})" for name, spread in found.items() if spread > asked["spread"]]
    if not wide:
        return []
    return [f"after {asked['max']} repeats not known to ±{asked['spread']:.0%}: {', '.join(wide)}. {_AGAIN}"]


def _spread(one: RunSummary) -> float:
    """Return half the interval of a speed-up over the speed-up."""
    low, high = one.speed.speedup_low, one.speed.speedup_high
    return 0.0 if low is None or high is None else (high - low) / (2 * _speedup(one))


def _busy(runs: Sequence[RunSummary]) -> list[str]:
    """Return whether other processes took the time of the runs."""
    share, name = max(((_waiting(one), one.name) for one in runs), default=(0.0, ""))
    if share <= MAX_WAITING:
        return []
    return [f"the machine was busy: {name} waited for a core for {share:.0%} of its time. {_AGAIN}"]


def _waiting(one: RunSummary) -> float:
    """Return the share of the wall time in which the decoding thread did not run."""
    cpu, seconds = one.counts.cpu_seconds, one.counts.seconds
    return 0.0 if cpu is None or not seconds else 1 - cpu / seconds


def _speedup(one: RunSummary) -> float:
    return one.speed.speedup or 0.0


def _gain(one: RunSummary) -> str:
    text = f"{_speedup(one):.2f}× the speed of the baseline"
    expected = one.expected.speedup_expected_here
    return text if expected is None else f"{text} (expected here {expected:.2f}×)"


def _exactness(one: RunSummary) -> str:
    """Return how a run's outputs relate to those of the baseline."""
    if not one.lossless:
        return f"; it is {_lossy(one)}, so its outputs need not have the target's distribution"
    if one.quality is None:
        return ""
    exact = one.quality["exact"]
    if exact == 1:
        return "; its outputs are those of the baseline"
    if one.config["sampling"]["temperature"] == 0:
        return f"; only {int(100 * exact)}% of its outputs are those of the baseline"
    return "; its outputs are other samples from the target's distribution"
