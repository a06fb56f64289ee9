"""What a study found out about each run, from the counters and times of its repeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from statistics import fmean, median
from typing import Any

from specdec_core.decoding import Metrics
from specdec_core.study.expectation import Expectation, Shares, draft_cost, verify_cost
from specdec_core.study.outputs import quality_of
from specdec_core.study.runner import StudyResult
from specdec_core.study.study import PLAIN, Label, Run, Task
from specdec_core.study.verdict import Facts, best_of, verdict
from specdec_core.theory import walltime_improvement


@dataclass(frozen=True)
class RunSummary:
    """What a study found out about one run: one line of `results.jsonl`.

    Counts and times are sums over all repeats and prompts; alpha and block efficiency follow from the sums. What
    is timed or follows from times (`tokens_per_second`, the speed-ups, `c` and the other costs) is the median over
    the repeats, tokens a second and speed-up with their ends.

    Attributes:
        task: Name of the task; None where the study names none.
        name: Name of the run; the first of a task is the plain baseline.
        drafter: Name of the drafter; None for the baseline.
        gamma: Tokens drafted in a step, or the controller's name.
        lenience: Factor l, or the controller's name.
        lossless: Whether l is 1 whatever happens, so that the run writes the target's distribution.
        repeats: How many repeats were finished.
        tokens: New tokens.
        target_calls: Forwards of the target.
        drafted: Draft tokens verified.
        accepted: Draft tokens kept.
        gamma_mean: Tokens drafted in a step and sequence, on average.
        block_efficiency: Tokens a target call and sequence, recovered or bonus token included.
        alpha: E(beta), kept draft tokens over judged ones; None when none was judged.
        alpha_by_position: Of each position in the draft, the first first; section 3 takes them to be equal.
        judged_by_position: How many draft tokens were judged at each position: with few, alpha is noise.
        c: Cost coefficient (Definition 3.7): the drafter's time for one token over that of a plain target call in
            the same repeat; first steps, with their prompts, are left out.
        verify_cost: T(k) / T(0), k = 0, 1, ...: the target's time with a draft of k tokens over that of a plain
            call. Over all runs of the task; None where too few such steps were seen.
        draft_cost: D(k) / T(0), k = 0, 1, ...: the drafter's time for k tokens, of this run.
        steps_by_length: Steps whose longest draft had 0, 1, ... tokens, first steps left out.
        tokens_per_second: New tokens a second of wall time.
        tokens_per_second_min: The slowest repeat's.
        tokens_per_second_max: The fastest repeat's.
        speedup: Tokens a second over the baseline's in the same repeat.
        speedup_min: The least of a repeat.
        speedup_max: The greatest of a repeat.
        speedup_expected: Theorem 3.8 with this run's alpha, c and mean number of draft tokens a step. It takes
            verification to cost no more than a plain call, and nothing but the two models to take time.
        speedup_expected_here: What was to be expected on this machine: from the steps as they were drafted and
            kept, with T(k) of all runs, this drafter's D(k), the framework's own time, prompts and set-up.
        gamma_best: The fixed gamma, up to the longest draft of any run of the task, that should be fastest; 0 for
            none. Of a controller that stops within drafts, the longest draft to allow it.
        speedup_expected_best: The speed-up to be expected with it, as in `speedup_expected_here`.
        speedup_by_gamma: The same for gamma = 0, 1, ... up to the longest draft of any run of the task.
        deviation: Total variation from the target's distribution that lenience spent in a sequence, on average;
            0 when strict.
        time_shares: Where the wall time went: `target`, as far as a plain call takes; `verifying`, the target
            beyond that; `drafting`; `framework`, in the steps but in neither; `outside`: prompts and set-up.
        verdict: Why the run is as fast as it is, in a sentence; None for the baseline, and where nothing was
            measured.
        quality: How the texts compare with those of plain decoding, and with references where there are some; the
            fields of `specdec_core.study.quality.Quality`. None where nothing was decoded.
        seconds: Wall time.
        draft_seconds: Of which in the drafter.
        verify_seconds: Of which in the target.
        seed: Seed of the study.
        device: Where the target computed.
        error: Why the run was given up; None when it was not.
        failures: Failures of plugins during decoding that cost no token.
        versions: Versions of the framework, libraries and plugins.
        config: The resolved settings of the run and of the study.
    """

    task: str | None
    name: str
    drafter: str | None
    gamma: Label
    lenience: Label
    lossless: bool
    repeats: int
    tokens: int
    target_calls: int
    drafted: int
    accepted: int
    gamma_mean: float | None
    block_efficiency: float | None
    alpha: float | None
    alpha_by_position: tuple[float, ...]
    judged_by_position: tuple[int, ...]
    c: float | None
    verify_cost: tuple[float | None, ...]
    draft_cost: tuple[float | None, ...]
    steps_by_length: tuple[int, ...]
    tokens_per_second: float | None
    tokens_per_second_min: float | None
    tokens_per_second_max: float | None
    speedup: float | None
    speedup_min: float | None
    speedup_max: float | None
    speedup_expected: float | None
    speedup_expected_here: float | None
    gamma_best: int | None
    speedup_expected_best: float | None
    speedup_by_gamma: tuple[float, ...]
    deviation: float | None
    time_shares: Mapping[str, float] | None
    verdict: str | None
    quality: Mapping[str, Any] | None
    seconds: float
    draft_seconds: float
    verify_seconds: float
    seed: int
    device: str
    error: str | None
    failures: tuple[Mapping[str, Any], ...]
    versions: Mapping[str, str]
    config: Mapping[str, Any]


def summarise(result: StudyResult) -> list[RunSummary]:
    """Return a summary for each run of a study, task by task, the baseline first in each."""
    return [
        _summary(result, run, measured)
        for measured in (_Measured(result, task) for task in result.study.tasks)
        for run in measured.task.runs
    ]


class _Measured:
    """The metrics of all runs of a task, and what follows from all of them together."""

    def __init__(self, result: StudyResult, task: Task) -> None:
        self.task = task
        self._metrics = {
            run.name: {n: Metrics.from_plain(one.metrics) for n, one in result.of_run(task, run.name).items()}
            for run in task.runs
        }
        self.rows = len(task.prompts)
        """Sequences decoded in a repeat."""
        self.cost = {number: self._cost(number, plain) for number, plain in self.of_run(PLAIN).items()}
        """T(k) / T(0) in each repeat."""
        self.longest = max((max(cost) for cost in self.cost.values() if cost), default=0)
        """The longest draft of any run."""

    def of_run(self, name: str) -> Mapping[int, Metrics]:
        return self._metrics.get(name, {})

    def _cost(self, number: int, plain: Metrics) -> dict[int, float]:
        beside = [runs[number] for runs in self._metrics.values() if number in runs]
        return verify_cost(plain, sum(beside, Metrics()).times)

    def expectations(self, name: str) -> list[Expectation]:
        """Return what each repeat of a run lets expect; none where the baseline has no step without a prompt."""
        return [
            Expectation(metrics, self.of_run(PLAIN)[number], self.cost[number], self.rows, self.longest)
            for number, metrics in self.of_run(name).items()
            if self.cost[number]
        ]


def _summary(result: StudyResult, run: Run, study: _Measured) -> RunSummary:
    measured = study.of_run(run.name)
    drafter, gamma, lenience = run.labels
    numbers: dict[str, Any] = {
        **_counted(sum(measured.values(), Metrics()), len(measured) * study.rows),
        **_timed(run, study),
    }
    numbers.update(_expected(run, numbers, study.expectations(run.name), study.longest))
    repeats = result.of_run(study.task, run.name)
    quality = quality_of(study.task, repeats, result.of_run(study.task, PLAIN))
    return RunSummary(
        task=study.task.name,
        name=run.name,
        drafter=drafter,
        gamma=gamma,
        lenience=lenience,
        lossless=run.lossless,
        repeats=len(measured),
        quality=None if quality is None else asdict(quality),
        seed=study.task.generation.seed,
        device=next(iter(repeat.device for repeat in repeats.values()), None) or result.identity["device"],
        error=result.failed.get((study.task.name, run.name)),
        failures=tuple(failure for repeat in repeats.values() for failure in repeat.failures),
        versions=result.identity["versions"],
        config={**result.study.shared(), **study.task.resolved(), "run": run.resolved()},
        **numbers,
    )


def _counted(total: Metrics, sequences: int) -> dict[str, Any]:
    """Return what follows from the sums over all repeats."""
    some = bool(total.row_steps)
    places = zip_longest(total.judged_at, total.accepted_at, fillvalue=0)
    return {
        "tokens": total.tokens,
        "target_calls": total.target_calls,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "gamma_mean": total.drafted / total.row_steps if some else None,
        "block_efficiency": total.block_efficiency if some else None,
        "alpha": total.alpha,
        "alpha_by_position": tuple(accepted / judged for judged, accepted in places),
        "judged_by_position": total.judged_at,
        "steps_by_length": tuple(time.steps for time in total.times),
        "deviation": total.deviation / sequences if some else None,
        "seconds": total.seconds,
        "draft_seconds": total.draft_seconds,
        "verify_seconds": total.verify_seconds,
    }


def _timed(run: Run, study: _Measured) -> dict[str, Any]:
    """Return what is the middle of the repeats' times."""
    measured, plain = study.of_run(run.name), study.of_run(PLAIN)
    drafting = [draft_cost(m, plain[n]) for n, m in measured.items()] if run.drafter is not None else []
    return {
        **_spread("tokens_per_second", [m.tokens_per_second for m in measured.values()]),
        **_spread("speedup", [m.tokens_per_second / plain[n].tokens_per_second for n, m in measured.items()]),
        "c": _middle(_c(m, plain[n]) for n, m in measured.items()),
        "verify_cost": _by_length(study.cost.values()),
        "draft_cost": _by_length(drafting),
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys((name, f"{name}_min", f"{name}_max"))
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def _middle(values: Iterable[float | None]) -> float | None:
    """Return the median of what was measured."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _by_length(repeats: Iterable[Mapping[int, float]]) -> tuple[float | None, ...]:
    """Return the median of what the repeats say on each length of draft."""
    said = list(repeats)
    longest = max((k for one in said for k in one), default=-1)
    return tuple(_middle(one.get(k) for one in said) for k in range(longest + 1))


def _c(run: Metrics, plain: Metrics) -> float | None:
    """Return c of Definition 3.7 for one repeat; None when nothing was drafted, or no plain call was timed."""
    drafting, verifying = run.draft_seconds_per_call, plain.verify_seconds_per_call
    return None if drafting is None or not verifying else drafting / verifying


def _expected(
    run: Run, numbers: Mapping[str, Any], repeats: Sequence[Expectation], longest: int
) -> dict[str, Any]:
    """Return what was to be expected, and why it came as it did."""
    shares = [asdict(one.shares) for one in repeats]
    drafting = [one for one in repeats if one.drafted]
    by_gamma = tuple(median(one.at(gamma) for one in drafting) for gamma in range(longest + 1)) if drafting else ()
    best = best_of(by_gamma) if by_gamma else None
    expected: dict[str, Any] = {
        "speedup_expected": _by_theorem(run, numbers),
        "speedup_expected_here": _middle(one.here for one in repeats),
        "gamma_best": best,
        "speedup_expected_best": None if best is None else by_gamma[best],
        "speedup_by_gamma": by_gamma,
        "time_shares": {name: fmean(one[name] for one in shares) for name in shares[0]} if shares else None,
        "verdict": None,
    }
    if run.drafter is not None and numbers["speedup"] is not None:
        expected["verdict"] = verdict(_facts({**numbers, **expected}, repeats))
    return expected


def _by_theorem(run: Run, numbers: Mapping[str, Any]) -> float | None:
    """Return the speed-up of Theorem 3.8; None where nothing was measured to compute it from."""
    if run.drafter is None:
        return 1.0 if numbers["tokens"] else None
    if numbers["alpha"] is None or numbers["c"] is None:
        return None
    return walltime_improvement(numbers["alpha"], numbers["gamma_mean"], numbers["c"])


def _facts(numbers: Mapping[str, Any], repeats: Sequence[Expectation]) -> Facts:
    shares = numbers["time_shares"]
    return Facts(
        drafted=numbers["gamma_mean"],
        kept=numbers["gamma_mean"] * numbers["accepted"] / max(1, numbers["drafted"]),
        drafting_steps=_middle(one.drafting_steps for one in repeats) or 1.0,
        alpha=numbers["alpha"],
        c=numbers["c"],
        speedup=numbers["speedup"],
        expected=numbers["speedup_expected_here"],
        by_gamma=numbers["speedup_by_gamma"],
        shares=None if shares is None else Shares(**shares),
        verify_excess=_middle(one.verify_excess for one in repeats) or 1.0,
    )
