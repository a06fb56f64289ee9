"""The summary of each run, from the counters and times of its repeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from specdec_core.decoding import Metrics
from specdec_core.study.config.study import BASELINE, Label, Run, Task
from specdec_core.study.report.counts import run_counts
from specdec_core.study.report.diagnosis import RunFacts, best_of, diagnose
from specdec_core.study.report.expectation import (
    MIN_COUNT,
    Expectation,
    TimeShares,
    draft_cost,
    speedup_bound,
    verify_cost,
)
from specdec_core.study.report.forecast import Forecast, with_forecasts
from specdec_core.study.report.groups import GroupSummary, summarize_groups
from specdec_core.study.report.quality import assess
from specdec_core.study.report.requests import run_requests
from specdec_core.study.report.run_fields import ReplayedOn, RunCounts, RunExpectation, RunRequests, RunSpeed
from specdec_core.study.report.uneven import uneven_calls
from specdec_core.study.run.study_session import StudyResult
from specdec_core.theory.intervals import median_interval
from specdec_core.theory.speed import walltime_improvement

_MOST_EXPECTATIONS = 500
_ONLY_IF = ("remembers", "uneven_calls", "groups", "forecast")
"""Fields that `results.jsonl` has only if they say something."""
_UNKNOWN = RunExpectation(None, None, None, None, (), None, None)


@dataclass(frozen=True)
class RunSummary:
    """The findings of a study about one run.

    A line of `results.jsonl` holds these fields, and those of `counts`, `requests`, `speed` and `expected`.

    Attributes:
        task: Name of the task; None for the only task of a study without `tasks`.
        name: Name of the run; the first of a task is `baseline`.
        drafter: Name of the drafter; None for the baseline.
        gamma: Tokens drafted per step, or the controller's name.
        lenience: Factor l, or the controller's name.
        rule: Name of the acceptance rule; None where none is set, and then `results.jsonl` has no such field.
        lossless: Whether lenience and rule give outputs with the target's distribution.
        repeats: Number of finished repeats.
        counts: Sums over repeats and prompts.
        requests: Figures of the single requests.
        speed: Measured speeds and costs.
        expected: What theory expects.
        quality: How the outputs compare with those of the baseline and with references: the fields of
            `specdec_core.study.report.quality.Quality`. None if nothing was decoded.
        seed: Seed of the task.
        device: Device of the target.
        status: `ok`; `plugin-failure` if a plugin failed while it decoded, which cost no token, but then the run
            is not what its name says; `error` if it was abandoned.
        error: Why the run was abandoned; None if it was not.
        failures: Plugin failures during decoding, none of which cost a token: the plugin's class, the step, the
            message, where in its code (file and line), and how often.
        notes: Where plugins were overruled, which is not a failure.
        versions: Versions of specdec, libraries and plugins.
        config: The resolved settings of the study, the task and the run.
        beams: Width w of beam search; None without it. With beams, a token counted is a step of the search, and a
            draft token one of its levels.
        draft_beams: Number of nodes in each level of the draft, over all beams; None without beams or drafter.
        passes_saved: With beams, the share of the baseline's target calls that the run did without; else None.
        replayed: What the run was replayed on: its counts and speeds are then expected ones. None if it was
            decoded and timed, and then `results.jsonl` has no such field.
        remembers: Whether the drafter declares that it keeps knowledge between requests. Each repeat then began
            with nothing but what the warm-up prompts taught. `results.jsonl` has the field only if it does.
        uneven_calls: The target calls of each repeat, if something keeps state between repeats without declaring
            it. The run is then not ranked. Empty otherwise, and then `results.jsonl` has no such field.
        groups: The findings for each group of prompts. Empty if the study groups none, for a run that failed or
            keeps state, and then `results.jsonl` has no such field.
        forecast: With an engine, the block efficiency of the same drafts in a replay, or in a run that decodes
            here. None where it is not known, and then `results.jsonl` has no such field.
    """

    task: str | None
    name: str
    drafter: str | None
    gamma: Label
    lenience: Label
    rule: str | None
    lossless: bool
    repeats: int
    counts: RunCounts
    requests: RunRequests
    speed: RunSpeed
    expected: RunExpectation
    quality: Mapping[str, Any] | None
    seed: int
    device: str
    error: str | None
    failures: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    versions: Mapping[str, str]
    config: Mapping[str, Any]
    beams: int | None = None
    draft_beams: int | None = None
    passes_saved: float | None = None
    replayed: ReplayedOn | None = None
    remembers: bool = False
    uneven_calls: tuple[int, ...] = ()
    groups: tuple[GroupSummary, ...] = ()
    forecast: Forecast | None = None

    @property
    def status(self) -> Literal["ok", "plugin-failure", "error"]:
        """Whether the run went as its settings say."""
        if self.error is not None:
            return "error"
        return "plugin-failure" if self.failures else "ok"

    def flat(self) -> dict[str, Any]:
        """Return the line of `results.jsonl`: all fields, with the fields of a group instead of the group."""
        fields: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name == "error":
                fields["status"] = self.status
            if (name in ("rule", "replayed") and value is None) or (name in _ONLY_IF and not value):
                continue
            if name == "replayed":  # the fields of `speed` and `expected` have its speed-ups
                value = {key: part for key, part in value.items() if not key.startswith("speedup")}
            if name == "groups":
                value = [one.flat() for one in self.groups]
            fields |= value if name in ("counts", "requests", "speed", "expected") else {name: value}
        return fields


def summarize(result: StudyResult, forecast: Path | None = None) -> list[RunSummary]:
    """Return a summary of each run of a study, grouped by task, the baseline first in each.

    Args:
        result: The measurements.
        forecast: Results of a replay, which forecast the runs of engines.
    """
    every = [summary for task in result.study.tasks for summary in _of_task(result, task)]
    return list(with_forecasts(every, forecast))


def _of_task(result: StudyResult, task: Task) -> list[RunSummary]:
    measured = _TaskMetrics(result, task)
    summaries = [_summary(result, run, measured) for run in task.runs]
    sound = [one for one in summaries if one.status == "ok" and one.repeats and not one.uneven_calls]
    config = result.study.config
    groups = summarize_groups(
        task.prompts,
        {one.name: result.of_run(task, one.name) for one in sound},
        config.batch_size,
        # A batch may have been decoded in parts, and requests to a server overlap.
        speeds=(config.batch_size == 1 or not config.auto_find_batch_size)
        and not any(one.engine and max(one.engine.concurrency, config.batch_size) > 1 for one in task.runs),
    )
    return [replace(one, groups=groups.get(one.name, ())) for one in summaries]


class _TaskMetrics:
    """The metrics of all runs of a task, and what follows from all of them together."""

    def __init__(self, result: StudyResult, task: Task) -> None:
        self.task = task
        self._metrics = {
            run.name: {n: one.metrics for n, one in result.of_run(task, run.name).items()} for run in task.runs
        }
        self.sequences = len(task.prompts)
        """Sequences decoded per repeat."""
        self._widths = {run.name: _draft_beams(run, task) for run in task.runs if run.drafter is not None}
        self._costs = {width: self._cost(width) for width in {None, *self._widths.values()}}
        costs = [cost for by_repeat in self._costs.values() for cost in by_repeat.values()]
        self.longest = max((max(cost) for cost in costs if cost), default=0)
        """The longest draft of any run."""

    def of_run(self, name: str) -> Mapping[int, Metrics]:
        return self._metrics.get(name, {})

    def cost(self, name: str) -> Mapping[int, Mapping[int, float]]:
        """Return T(k) / T(0) in each repeat, over all runs with drafts like those of a run."""
        return self._costs[self._widths.get(name)]

    def _cost(self, width: int | None) -> dict[int, dict[int, float]]:
        """Return T(k) / T(0) in each repeat; with beams, of drafts of a width."""
        alike = [repeats for name, repeats in self._metrics.items() if self._widths.get(name, width) == width]
        found = {}
        for number, baseline in self.of_run(BASELINE).items():
            runs = [one[number] for one in alike if number in one]
            # A replayed run has no seconds where those of its drafter are not known.
            found[number] = verify_cost(baseline, Metrics.total(one for one in runs if one.seconds).times)
        return found

    def expectations(self, name: str) -> list[Expectation]:
        """Return the expectation of each repeat of a run; none if the baseline only has steps with a prompt.

        Of very many repeats, some hundred spread evenly are enough for their medians.
        """
        cost = self.cost(name)
        own = self.of_run(name).items()
        repeats = [(number, metrics) for number, metrics in own if cost[number] and metrics.seconds]
        return [
            Expectation(metrics, self.of_run(BASELINE)[number], cost[number], self.sequences, self.longest)
            for number, metrics in repeats[:: 1 + len(repeats) // _MOST_EXPECTATIONS]
        ]


def _summary(result: StudyResult, run: Run, measured: _TaskMetrics) -> RunSummary:
    task = measured.task
    metrics = measured.of_run(run.name)
    repeats = result.of_run(task, run.name)
    replayed = next((repeat.replayed for repeat in repeats.values()), None)
    failures = tuple(asdict(failure) for repeat in repeats.values() for failure in repeat.failures)
    counts = run_counts(repeats.values(), measured.sequences)
    speed = _speed(run, measured, replayed)
    if failures:
        # Without its plugin a run decodes something else: its speed says nothing about its settings.
        unknown: dict[str, Any] = dict.fromkeys(name for name in vars(speed) if name.startswith("speedup"))
        speed = replace(speed, **unknown)
        expected = _UNKNOWN
    else:
        expected = _expected(task, run, counts, speed, measured.expectations(run.name), measured.longest, replayed)
    outputs, others = (
        {number: one.outputs for number, one in result.of_run(task, name).items()} for name in (run.name, BASELINE)
    )
    references = [prompt.references for prompt in task.prompts]
    # The baseline does not differ from itself, and greedy outputs are compared exactly: there is nothing to test.
    untested = run.name == BASELINE or task.sampling.greedy
    # No run of a replay has outputs.
    quality = None if replayed else assess(outputs, others, references, greedy=untested)
    return RunSummary(
        task=task.name,
        name=run.name,
        drafter=run.labels.drafter,
        gamma=run.labels.gamma,
        lenience=run.labels.lenience,
        rule=run.labels.rule,
        lossless=run.lossless_for(task.sampling),
        repeats=len(metrics),
        counts=counts,
        requests=run_requests(repeats),
        speed=speed,
        expected=expected,
        quality=None if quality is None else asdict(quality),
        seed=task.generation.seed,
        device=next(iter(repeat.device for repeat in repeats.values()), None) or result.provenance["device"],
        error=result.failed.get((task.name, run.name)),
        failures=failures,
        notes=tuple(dict.fromkeys(note for repeat in repeats.values() for note in repeat.notes)),
        versions=result.provenance["versions"],
        config={**result.study.shared(), **task.resolved(), **_warmup(task), "run": run.resolved()},
        beams=None if task.generation.beams == 1 else task.generation.beams,
        draft_beams=None if run.drafter is None else _draft_beams(run, task),
        passes_saved=None if task.generation.beams == 1 else _passes_saved(run, measured),
        replayed=replayed,
        remembers=any(repeat.remembers for repeat in repeats.values()),
        uneven_calls=uneven_calls(run, repeats, result.of_run(task, BASELINE), greedy=task.sampling.greedy),
    )


def _warmup(task: Task) -> dict[str, Any]:
    return {"warmup": {"count": len(task.warmup)}} if task.warmup else {}


def _draft_beams(run: Run, task: Task) -> int | None:
    beams = task.generation.beams
    return None if beams == 1 else run.draft_beams or beams


def _passes_saved(run: Run, measured: _TaskMetrics) -> float | None:
    """Return the share of the baseline's target calls that a run did without, in the repeats of both."""
    calls = {number: one.target_calls for number, one in measured.of_run(run.name).items()}
    plain = sum(measured.of_run(BASELINE)[number].target_calls for number in calls)
    return 1 - sum(calls.values()) / plain if plain else None


def _speed(run: Run, measured: _TaskMetrics, replayed: ReplayedOn | None) -> RunSpeed:
    metrics, baseline = measured.of_run(run.name), measured.of_run(BASELINE)
    timed = {n: m for n, m in metrics.items() if m.seconds}
    speeds = {n: m.tokens_per_second for n, m in timed.items()}
    speedups = [speed / baseline[n].tokens_per_second for n, speed in speeds.items()]
    low, high = median_interval(speedups) or (None, None)
    if replayed is not None:
        low, high = replayed.speedup_low, replayed.speedup_high
    drafting = [draft_cost(m, baseline[n]) for n, m in timed.items()] if run.drafter is not None else []
    return RunSpeed(
        c=_median(_cost_coefficient(m, baseline[n]) for n, m in timed.items()),
        verify_cost=_by_length(measured.cost(run.name).values()),
        draft_cost=_by_length(drafting),
        **_spread("tokens_per_second", list(speeds.values())),
        **_spread("speedup", speedups),
        speedup_low=low,
        speedup_high=high,
        speedup_bound=speedup_bound(Metrics.total(metrics.values()), Metrics.total(baseline[n] for n in metrics)),
    )


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys((name, f"{name}_min", f"{name}_max"))
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _by_length(repeats: Iterable[Mapping[int, float]]) -> tuple[float | None, ...]:
    """Return the median over the repeats for each draft length."""
    costs = list(repeats)
    longest = max((k for cost in costs for k in cost), default=-1)
    return tuple(_median(cost.get(k) for cost in costs) for k in range(longest + 1))


def _cost_coefficient(run: Metrics, baseline: Metrics) -> float | None:
    """Return c of Definition 3.7 for one repeat; None if nothing was drafted, or no baseline step was timed."""
    drafting, verifying = run.draft_seconds_per_call, baseline.verify_seconds_per_call
    return None if drafting is None or not verifying else drafting / verifying


def _expected(
    task: Task,
    run: Run,
    counts: RunCounts,
    speed: RunSpeed,
    repeats: Sequence[Expectation],
    longest: int,
    replayed: ReplayedOn | None,
) -> RunExpectation:
    drafting = [one for one in repeats if one.drafted]
    by_gamma = tuple(median(one.at(gamma) for one in drafting) for gamma in range(longest + 1)) if drafting else ()
    here = _median(one.here for one in repeats)
    steps = sum(counts.steps_by_length[1:])
    if replayed is not None:  # nothing is left to estimate
        here, by_gamma, steps = speed.speedup, replayed.speedup_by_gamma, max(steps, MIN_COUNT)
    best = best_of(by_gamma) if by_gamma and steps >= MIN_COUNT else None
    shares = [asdict(one.shares) for one in repeats]
    expected = RunExpectation(
        speedup_expected=_by_theorem(run, counts, speed),
        speedup_expected_here=here,
        gamma_best=best,
        speedup_expected_best=None if best is None else by_gamma[best],
        speedup_by_gamma=by_gamma,
        time_shares=_time_shares(shares, replayed),
        diagnosis=None,
    )
    if run.drafter is None or run.engine is not None or speed.speedup is None or counts.gamma_mean is None:
        return expected
    facts = RunFacts(
        drafted=counts.gamma_mean,
        accepted=counts.gamma_mean * counts.accepted / max(1, counts.drafted),
        steps=steps,
        drafting_steps=_median(one.drafting_steps for one in repeats) or 1.0,
        alpha=counts.alpha,
        c=speed.c,
        speedup=speed.speedup,
        expected=expected.speedup_expected_here,
        by_gamma=by_gamma,
        shares=None if expected.time_shares is None else TimeShares(**expected.time_shares),
        verify_excess=_median(one.verify_excess for one in repeats) or 1.0,
        trees=counts.levels_mean is not None,
        forced=counts.forced / max(1, counts.tokens),
        noisy=replayed is not None and replayed.noisy,
        drawn=task.sampling.greedy and run.draft_sampling is not None and not run.draft_sampling.greedy,
    )
    return replace(expected, diagnosis=diagnose(facts))


def _time_shares(
    repeats: Sequence[Mapping[str, float]], replayed: ReplayedOn | None
) -> Mapping[str, float] | None:
    """Return the mean shares over the repeats."""
    if not repeats:
        return None
    shares = {name: fmean(one[name] for one in repeats) for name in repeats[0]}
    if replayed is None:
        return shares
    # No prompt is read in a replay: the first step of a text is like the others.
    inside = 1 - shares.pop("outside")
    return {**({name: share / inside for name, share in shares.items()} if inside else shares), "outside": 0.0}


def _by_theorem(run: Run, counts: RunCounts, speed: RunSpeed) -> float | None:
    """Return the speed-up of Theorem 3.8; None without the measurements that it needs.

    For trees, and where a constraint forces tokens, its tokens per step, which the acceptance rate and a length do
    not determine, are those measured.
    """
    if run.name == BASELINE:
        return 1.0 if counts.tokens else None
    if counts.alpha is None or counts.gamma_mean is None or speed.c is None:
        return None
    if (counts.levels_mean is not None or counts.forced) and counts.block_efficiency is not None:
        return counts.block_efficiency / ((counts.levels_mean or counts.gamma_mean) * speed.c + 1)
    return walltime_improvement(counts.alpha, counts.gamma_mean, speed.c)
