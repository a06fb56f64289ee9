"""The summary of each run, from the counters and times of its repeats."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from specdec_core.decoding.counts import Metrics
from specdec_core.interface import PluginConfig
from specdec_core.registry.nesting import nested_settings
from specdec_core.study.config.study import BASELINE, Label, Run, Task
from specdec_core.study.report.diagnosis import diagnose
from specdec_core.study.report.expectation import MIN_COUNT, Expectation, draft_cost, speedup_bound, verify_cost
from specdec_core.study.report.forecast import Forecast, with_forecasts
from specdec_core.study.report.groups import GroupSummary, summarize_groups
from specdec_core.study.report.quality import assess
from specdec_core.study.report.requests import run_requests
from specdec_core.study.run.finished_repeats import Repeat, ReplayedOn
from specdec_core.study.run.study_session import StudyResult
from specdec_core.theory.intervals import median_interval
from specdec_core.theory.speed import walltime_improvement

_MOST_EXPECTATIONS = 500
_COSTS = ("c", "verify_cost", "draft_cost", "tokens_per_second", "tokens_per_second_min", "tokens_per_second_max")
"""Fields of times that are known although a plugin failed."""


@dataclass(frozen=True)
class RunSummary:
    """The findings of a study about one run: the fields of a line of `results.jsonl`.

    Counts are sums over all repeats and prompts, speeds and costs medians over the repeats. What was not measured,
    or does not apply, is None or empty.

    Attributes:
        task: Name of the task; None for the only task of a study without `tasks`.
        name: Name of the run; the first of a task is `baseline`.
        drafter: Name of the drafter; None for the baseline.
        gamma: Tokens drafted per step, or the controller's name.
        lenience: Factor l, or the controller's name.
        rule: Name of the acceptance rule; None where none is set.
        lossless: Whether lenience and rule give outputs with the target's distribution.
        repeats: Number of finished repeats.
        tokens: New tokens.
        target_calls: Forward passes of the target.
        drafted: Draft tokens proposed.
        accepted: Draft tokens accepted.
        gamma_mean: Mean number of draft tokens per step and sequence.
        levels_mean: Mean depth of the trees per step; None if drafts were lines.
        block_efficiency: Tokens per step and sequence, including the recovered or bonus token. vLLM's
            `mean_acceptance_length` leaves out steps without a draft.
        alpha: Acceptance rate E(beta): accepted over verified draft tokens; None if none was verified. vLLM's
            `draft_acceptance_rate` counts all draft tokens, those behind a rejection included.
        alpha_by_position: The same at each position, over drafts that reach it; section 3 assumes that all are
            equal.
        verified_by_position: Draft tokens verified at each position: if they are few, the rate is noise.
        steps_by_length: Steps whose longest draft had 0, 1, ... tokens, without the first step of each batch.
        deviation: Total variation from the target's distribution that lenience or a lossy rule spent per
            sequence; 0 without either.
        seconds: Wall time.
        cpu_seconds: CPU time of the decoding thread: on an idle machine, nearly the wall time. None unless the
            target is on a CPU.
        draft_seconds: The drafter's part of the wall time.
        verify_seconds: The target's part of it.
        forced: Tokens that a constraint forced, committed without being drafted; among `tokens`.
        c: Cost coefficient (Definition 3.7): the drafter's time for one token over that of a target call without a
            draft in the same repeat. The first step of each batch, which reads the prompts, is left out.
        verify_cost: T(k) / T(0), k = 0, 1, ...: the target's time with a draft of k tokens over that without a
            draft, measured over all runs of the task, with beams over those with the same `draft_beams`. None for
            lengths that were measured too rarely.
        draft_cost: D(k) / T(0), k = 0, 1, ...: the drafter's time for k tokens in this run.
        tokens_per_second: New tokens per second of wall time.
        tokens_per_second_min: The same in the slowest repeat.
        tokens_per_second_max: The same in the fastest repeat.
        speedup: Tokens per second over those of the baseline in the same repeat. This and the following are None
            for a run in which a plugin failed.
        speedup_min: The smallest speed-up of a repeat.
        speedup_max: The largest speed-up of a repeat.
        speedup_low: Lower end of the interval for the speed-up: the range of up to eight repeats; of more, the 95%
            confidence interval of their median. None for a single repeat.
        speedup_high: Its upper end.
        speedup_bound: The largest speed-up that is possible if no target call with a draft takes less time than
            one without: tokens per target call over those of the baseline.
        speedup_expected: Theorem 3.8 with this run's alpha, c and mean draft length. It assumes that verifying a
            draft takes no longer than a target call without one, and that nothing but the two models takes time.
        speedup_expected_here: The speed-up to expect on this machine from the drafts as they were: with T(k) of
            all runs, this drafter's D(k), the framework's overhead, prompts and set-up.
        gamma_best: The fixed gamma that should be fastest, up to the longest draft of any run of the task; 0 if
            autoregressive decoding is. For a controller that ends drafts early, the longest draft to allow. None
            if fewer than 30 steps with a draft were timed.
        speedup_expected_best: The expected speed-up with that gamma.
        speedup_by_gamma: The expected speed-up for gamma = 0, 1, ... up to the longest draft of any run of the
            task.
        time_shares: Where the wall time went: `target`, up to the time of target calls without a draft;
            `verifying`, the target beyond that; `drafting`; `framework`, steps outside both models; `outside`,
            prompts and set-up.
        diagnosis: What to change, and what to doubt; None for the baseline and for runs without measurements.
        speculative_decoding: The fields of vLLM's `metrics.speculative_decoding`, over all steps of the first
            repeat; repeats have the same seeds. None for the baseline, with beams and for replays.
        percentiles: `mean`, `min`, `max` and the 10th to 99th percentile (`p10`, `p50`, `p90`, `p95`, `p99`) of
            `mean_acceptance_length` and `draft_acceptance_rate`, and of `seconds` in all repeats: from the start
            of a request's batch to its last token. Without those that were not measured.
        thinking: The same fields as `speculative_decoding` apart: `inside` for the steps that began in a thinking
            part (`<think>`), `outside` for the others. None where no answer has one.
        quality: How the outputs compare with those of the baseline and with references: the fields of
            `specdec_core.study.report.quality.Quality`. None if nothing was decoded.
        seed: Seed of the task.
        device: Device of the target.
        error: Why the run was abandoned; None if it was not.
        failures: Plugin failures during decoding, none of which cost a token: the plugin's class, the step, the
            message, where in its code (file and line), and how often.
        notes: Where plugins were overruled, which is not a failure.
        versions: Versions of specdec, of libraries, and of the distributions whose plugins the run uses, the
            latter with a digest of their code.
        config: The resolved settings of the study, the task and the run.
        beams: Width w of beam search; None without it. With beams, a token counted is a step of the search, and a
            draft token one of its levels.
        draft_beams: Number of nodes in each level of the draft, over all beams; None without beams or drafter.
        passes_saved: With beams, the share of the baseline's target calls that the run did without; else None.
        replayed: What the run was replayed on: its counts and speeds are then expected ones. None if it was
            decoded and timed.
        remembers: Whether the drafter declares that it keeps knowledge between requests. Each repeat then began
            with nothing but what the warm-up prompts taught.
        uneven_calls: The target calls of each repeat, if something keeps state between repeats without declaring
            it. The run is then not ranked.
        groups: The findings for each group of prompts. Empty if the study groups none, and for a run that failed
            or keeps state.
        forecast: With an engine, the block efficiency of the same drafts in a replay, or in a run that decodes
            here. None where it is not known.
    """

    task: str | None
    name: str
    drafter: str | None
    gamma: Label
    lenience: Label
    rule: str | None
    lossless: bool
    repeats: int
    tokens: int
    target_calls: int
    drafted: int
    accepted: int
    gamma_mean: float | None
    levels_mean: float | None
    block_efficiency: float | None
    alpha: float | None
    alpha_by_position: tuple[float, ...]
    verified_by_position: tuple[int, ...]
    steps_by_length: tuple[int, ...]
    deviation: float | None
    seconds: float
    cpu_seconds: float | None
    draft_seconds: float
    verify_seconds: float
    forced: int
    c: float | None
    verify_cost: tuple[float | None, ...]
    draft_cost: tuple[float | None, ...]
    tokens_per_second: float | None
    tokens_per_second_min: float | None
    tokens_per_second_max: float | None
    speedup: float | None
    speedup_min: float | None
    speedup_max: float | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_bound: float | None
    speedup_expected: float | None
    speedup_expected_here: float | None
    gamma_best: int | None
    speedup_expected_best: float | None
    speedup_by_gamma: tuple[float, ...]
    time_shares: Mapping[str, float] | None
    diagnosis: str | None
    speculative_decoding: Mapping[str, Any] | None
    percentiles: Mapping[str, Mapping[str, float]]
    thinking: Mapping[str, Any] | None
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
        """Whether the run went as its settings say.

        `plugin-failure` if a plugin failed while it decoded, which cost no token, but then the run is not what its
        name says; `error` if it was abandoned.
        """
        if self.error is not None:
            return "error"
        return "plugin-failure" if self.failures else "ok"

    def flat(self) -> dict[str, Any]:
        """Return the line of `results.jsonl`: all fields, and `status`."""
        return asdict(self) | {"status": self.status, "groups": [one.flat() for one in self.groups]}


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
    summaries = [replace(one, diagnosis=diagnose(one)) for one in summaries]
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
    repeats = result.of_run(task, run.name)
    replayed = next((repeat.replayed for repeat in repeats.values()), None)
    failures = tuple(asdict(failure) for repeat in repeats.values() for failure in repeat.failures)
    counts = _counts(repeats.values(), measured.sequences)
    speed = _speed(run, measured, replayed)
    expected = _expected(run, counts, speed, measured, replayed)
    if failures:
        # Without its plugin a run decodes something else: its speed says nothing about its settings.
        speed = {name: value if name in _COSTS else None for name, value in speed.items()}
        expected = dict.fromkeys(expected) | {"speedup_by_gamma": ()}
    outputs, others = (
        {number: one.outputs for number, one in result.of_run(task, name).items()} for name in (run.name, BASELINE)
    )
    references = [prompt.references for prompt in task.prompts]
    # The baseline does not differ from itself, and greedy outputs are compared exactly: there is nothing to test.
    untested = run.name == BASELINE or task.sampling.greedy
    # No run of a replay has outputs.
    quality = None if replayed else assess(outputs, others, references, greedy=untested)
    beams = task.generation.beams
    warmup = {"warmup": {"count": len(task.warmup)}} if task.warmup else {}
    return RunSummary(
        task=task.name,
        name=run.name,
        **asdict(run.labels),
        lossless=run.lossless_for(task.sampling),
        repeats=len(repeats),
        **counts,
        **speed,
        **expected,
        **run_requests(repeats, None if run.engine is not None else task.counted),
        diagnosis=None,
        quality=None if quality is None else asdict(quality),
        seed=task.generation.seed,
        device=next(iter(repeat.device for repeat in repeats.values()), None) or result.provenance["device"],
        error=result.failed.get((task.name, run.name)),
        failures=failures,
        notes=tuple(dict.fromkeys(note for repeat in repeats.values() for note in repeat.notes)),
        versions={**result.provenance["versions"], **result.provenance["plugins"].get(run.name, {})},
        config={**result.study.shared(), **task.resolved(), **warmup, "run": run.resolved()},
        beams=None if beams == 1 else beams,
        draft_beams=None if run.drafter is None else _draft_beams(run, task),
        passes_saved=None if beams == 1 else _passes_saved(run, measured),
        replayed=replayed,
        remembers=any(repeat.remembers for repeat in repeats.values()),
        uneven_calls=uneven_calls(run, repeats, result.of_run(task, BASELINE), greedy=task.sampling.greedy),
    )


def _draft_beams(run: Run, task: Task) -> int | None:
    beams = task.generation.beams
    return None if beams == 1 else run.draft_beams or beams


def _passes_saved(run: Run, measured: _TaskMetrics) -> float | None:
    """Return the share of the baseline's target calls that a run did without, in the repeats of both."""
    calls = {number: one.target_calls for number, one in measured.of_run(run.name).items()}
    plain = sum(measured.of_run(BASELINE)[number].target_calls for number in calls)
    return 1 - sum(calls.values()) / plain if plain else None


def _counts(repeats: Collection[Repeat], sequences: int) -> dict[str, Any]:
    """Return the counts of a run, and the ratios that follow from them.

    Args:
        repeats: Its repeats.
        sequences: Number of sequences that were decoded in each.
    """
    total = Metrics.total(repeat.metrics for repeat in repeats)
    measured = bool(total.row_steps)
    cpu = [repeat.cpu_seconds for repeat in repeats if repeat.cpu_seconds is not None]
    positions = zip_longest(total.verified_at, total.accepted_at, fillvalue=0)
    return {
        "tokens": total.tokens,
        "target_calls": total.target_calls,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "gamma_mean": total.drafted / total.row_steps if measured else None,
        "levels_mean": total.draft_calls / total.target_calls if total.tree_steps else None,
        "block_efficiency": total.block_efficiency if measured else None,
        "alpha": total.alpha,
        "alpha_by_position": tuple(accepted / verified for verified, accepted in positions),
        "verified_by_position": total.verified_at,
        "steps_by_length": tuple(time.steps for time in total.times),
        "deviation": total.deviation / (len(repeats) * sequences) if measured else None,
        "seconds": total.seconds,
        "cpu_seconds": sum(cpu) if repeats and len(cpu) == len(repeats) else None,
        "draft_seconds": total.draft_seconds,
        "verify_seconds": total.verify_seconds,
        "forced": total.forced,
    }


def _speed(run: Run, measured: _TaskMetrics, replayed: ReplayedOn | None) -> dict[str, Any]:
    """Return the speeds and costs of a run: medians over the repeats."""
    metrics, baseline = measured.of_run(run.name), measured.of_run(BASELINE)
    timed = {n: m for n, m in metrics.items() if m.seconds}
    speeds = {n: m.tokens_per_second for n, m in timed.items()}
    speedups = [speed / baseline[n].tokens_per_second for n, speed in speeds.items()]
    low, high = median_interval(speedups) or (None, None)
    if replayed is not None:
        low, high = replayed.speedup_low, replayed.speedup_high
    drafting = [draft_cost(m, baseline[n]) for n, m in timed.items()] if run.drafter is not None else []
    return {
        "c": _median(_cost_coefficient(m, baseline[n]) for n, m in timed.items()),
        "verify_cost": _by_length(measured.cost(run.name).values()),
        "draft_cost": _by_length(drafting),
        **_spread("tokens_per_second", list(speeds.values())),
        **_spread("speedup", speedups),
        "speedup_low": low,
        "speedup_high": high,
        "speedup_bound": speedup_bound(
            Metrics.total(metrics.values()), Metrics.total(baseline[n] for n in metrics)
        ),
    }


def _expected(
    run: Run,
    counts: Mapping[str, Any],
    speed: Mapping[str, Any],
    measured: _TaskMetrics,
    replayed: ReplayedOn | None,
) -> dict[str, Any]:
    """Return what theory expects of a run: medians over the repeats."""
    repeats, longest = measured.expectations(run.name), measured.longest
    drafting = [one for one in repeats if one.drafted]
    by_gamma = tuple(median(one.at(gamma) for one in drafting) for gamma in range(longest + 1)) if drafting else ()
    here = _median(one.here for one in repeats)
    steps = sum(counts["steps_by_length"][1:])
    if replayed is not None:  # nothing is left to estimate
        here, by_gamma, steps = speed["speedup"], replayed.speedup_by_gamma, max(steps, MIN_COUNT)
    # Of several that are as fast, the smallest gamma.
    best = by_gamma.index(max(by_gamma)) if by_gamma and steps >= MIN_COUNT else None
    return {
        "speedup_expected": _by_theorem(run, counts, speed["c"]),
        "speedup_expected_here": here,
        "gamma_best": best,
        "speedup_expected_best": None if best is None else by_gamma[best],
        "speedup_by_gamma": by_gamma,
        "time_shares": _time_shares([one.shares for one in repeats], replayed),
    }


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


def _by_theorem(run: Run, counts: Mapping[str, Any], c: float | None) -> Any:
    """Return the speed-up of Theorem 3.8; None without the measurements that it needs.

    For trees, and where a constraint forces tokens, its tokens per step, which the acceptance rate and a length do
    not determine, are those measured.
    """
    if run.name == BASELINE:
        return 1.0 if counts["tokens"] else None
    alpha, length, levels = counts["alpha"], counts["gamma_mean"], counts["levels_mean"]
    if alpha is None or length is None or c is None:
        return None
    if levels is not None or counts["forced"]:
        return float(counts["block_efficiency"] / ((levels or length) * c + 1))
    return walltime_improvement(alpha, length, c)


def uneven_calls(
    run: Run, repeats: Mapping[int, Repeat], baseline: Mapping[int, Repeat], *, greedy: bool
) -> tuple[int, ...]:
    """Return the target calls of each repeat of a run that keeps state between them; empty if it does not.

    The repeats of a run have the same prompts and seeds, and each begins with the drafter's `reset`. If their
    counts differ, something kept state, and has seen the prompts before. Two causes are legitimate: a gamma
    controller that declares `varies`, and rounding. Rounding changes tokens before it changes counts, so only
    repeats with equal outputs are compared. At a temperature above 0, other drafts may also give other tokens,
    which count if the baseline, in which no plugin takes part, gave the same tokens in each repeat.

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
        counts = one.metrics.target_calls, one.metrics.drafted, one.metrics.accepted
        by_output.setdefault((one.device, _tokens(one)), set()).add(counts)
    differ = any(len(counts) > 1 for counts in by_output.values())
    if not differ and not greedy and not _nests_gamma(run.drafter):
        same_device = len({one.device for one in known}) == 1
        differ = same_device and len(by_output) > 1 and len({_tokens(one) for one in baseline.values()}) == 1
    return tuple(one.metrics.target_calls for one in known) if differ else ()


def _tokens(repeat: Repeat) -> tuple[tuple[int, ...], ...]:
    return tuple(one.tokens for one in repeat.outputs)


def _nests_gamma(config: PluginConfig) -> bool:
    """Return whether a drafter holds its own gamma controller, which may vary."""
    nested = list(nested_settings(config))
    return any(one.marker.kind == "gamma" or _nests_gamma(one.config) for one in nested)
