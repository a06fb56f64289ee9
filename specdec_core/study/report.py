"""From repeats to results: one summary a run, written as JSON lines and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from specdec_core.decoding import Metrics
from specdec_core.study.journal import Repeat, write_atomically
from specdec_core.study.runner import StudyResult
from specdec_core.study.study import PLAIN, Label, Run
from specdec_core.theory import walltime_improvement

RESULTS = "results.jsonl"
SUMMARY = "summary.csv"

_NOT_IN_CSV = {"quality", "config", "versions", "failures"}


@dataclass(frozen=True)
class Spread:
    """The middle and the ends of what the repeats measured."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some values, at least one."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class RunSummary:
    """What a study found out about one run: one line of `results.jsonl`.

    Counts and times are sums over all repeats and prompts; alpha and block efficiency follow from the sums. What
    is timed (`tokens_per_second`, `speedup`, `c`) is the median over the repeats, the first two with their ends.

    Attributes:
        name: Name of the run; the first is the plain baseline.
        drafter: Name of the drafter; None for the baseline.
        gamma: Tokens drafted in a step, or the controller's name.
        lenience: Factor l, or the controller's name.
        repeats: How many repeats were finished.
        tokens: New tokens.
        target_calls: Forwards of the target.
        drafted: Draft tokens verified.
        accepted: Draft tokens kept.
        block_efficiency: Tokens a target call and sequence, recovered or bonus token included.
        alpha: E(beta), kept draft tokens over judged ones; None when none was judged.
        c: Time of the drafter for one token over that of a target call of the baseline in the same repeat.
        tokens_per_second: New tokens a second of wall time.
        tokens_per_second_min: The slowest repeat's.
        tokens_per_second_max: The fastest repeat's.
        speedup: Tokens a second over the baseline's in the same repeat.
        speedup_min: The least of a repeat.
        speedup_max: The greatest of a repeat.
        speedup_expected: Theorem 3.8 with this run's alpha, c and mean number of draft tokens a step.
        quality: Score against references; None where there are none.
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

    name: str
    drafter: str | None
    gamma: Label
    lenience: Label
    repeats: int
    tokens: int
    target_calls: int
    drafted: int
    accepted: int
    block_efficiency: float | None
    alpha: float | None
    c: float | None
    tokens_per_second: float | None
    tokens_per_second_min: float | None
    tokens_per_second_max: float | None
    speedup: float | None
    speedup_min: float | None
    speedup_max: float | None
    speedup_expected: float | None
    quality: Mapping[str, float] | None
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
    """Return a summary for each run of a study, the baseline first."""
    baseline = _of_run(result, PLAIN)
    return [_summary(result, run, baseline) for run in result.study.runs]


def write_results(folder: Path, summaries: Sequence[RunSummary]) -> list[Path]:
    """Write `results.jsonl` and `summary.csv`, each as a whole or not at all; return their paths.

    Raises:
        StorageError: When the folder cannot be written.
    """
    lines = "".join(json.dumps(asdict(summary), ensure_ascii=False) + "\n" for summary in summaries)
    write_atomically(folder / RESULTS, lines)
    columns = [field.name for field in fields(RunSummary) if field.name not in _NOT_IN_CSV]
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(summary) for summary in summaries)
    write_atomically(folder / SUMMARY, table.getvalue())
    return [folder / RESULTS, folder / SUMMARY]


def _of_run(result: StudyResult, name: str) -> dict[int, Metrics]:
    return {number: _metrics(repeat) for (run, number), repeat in sorted(result.repeats.items()) if run == name}


def _metrics(repeat: Repeat) -> Metrics:
    return Metrics.from_plain(repeat.metrics)


def _summary(result: StudyResult, run: Run, baseline: Mapping[int, Metrics]) -> RunSummary:
    measured = _of_run(result, run.name)
    total = sum(measured.values(), Metrics())
    speed = _spread([m.tokens_per_second for m in measured.values()])
    speedup = _spread([m.tokens_per_second / baseline[n].tokens_per_second for n, m in measured.items()])
    c = _spread([value for n, m in measured.items() if (value := _cost(m, baseline[n])) is not None])
    drafter, gamma, lenience = run.labels
    failures = [
        f for (name, _), repeat in sorted(result.repeats.items()) if name == run.name for f in repeat.failures
    ]
    return RunSummary(
        name=run.name,
        drafter=drafter,
        gamma=gamma,
        lenience=lenience,
        repeats=len(measured),
        tokens=total.tokens,
        target_calls=total.target_calls,
        drafted=total.drafted,
        accepted=total.accepted,
        block_efficiency=total.block_efficiency if measured else None,
        alpha=total.alpha,
        c=None if c is None else c.median,
        **_named("tokens_per_second", speed),
        **_named("speedup", speedup),
        speedup_expected=_expected(run, total, c),
        quality=None,
        seconds=total.seconds,
        draft_seconds=total.draft_seconds,
        verify_seconds=total.verify_seconds,
        seed=result.study.config.generation.seed,
        device=result.identity["device"],
        error=result.failed.get(run.name),
        failures=tuple(failures),
        versions=result.identity["versions"],
        config={**result.study.shared(), "run": run.resolved()},
    )


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread.of(values) if values else None


def _named(name: str, spread: Spread | None) -> dict[str, Any]:
    if spread is None:
        return dict.fromkeys((name, f"{name}_min", f"{name}_max"))
    return {name: spread.median, f"{name}_min": spread.min, f"{name}_max": spread.max}


def _cost(run: Metrics, baseline: Metrics) -> float | None:
    """Return c of Definition 3.7 for one repeat; None when nothing was drafted."""
    drafting, verifying = run.draft_seconds_per_call, baseline.verify_seconds_per_call
    return None if drafting is None or not verifying else drafting / verifying


def _expected(run: Run, total: Metrics, c: Spread | None) -> float | None:
    """Return the speed-up of Theorem 3.8; None where nothing was measured to compute it from."""
    if run.drafter is None:
        return 1.0 if total.tokens else None
    if total.alpha is None or c is None:
        return None
    return walltime_improvement(total.alpha, total.drafted / total.row_steps, c.median)
