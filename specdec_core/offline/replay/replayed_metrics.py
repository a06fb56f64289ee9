"""The expected counts and times of a run, from the acceptance of its drafter along recorded texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_core.costs.step_costs import StepCosts
from specdec_core.decoding.counts import Metrics, StepTimes
from specdec_core.interface import AcceptanceRule, ConfigError, GammaController
from specdec_core.interface.controllers import FixedGamma
from specdec_core.offline.replay.controller_runs import DrawnRun, draw_runs
from specdec_core.offline.replay.expected_counts import ExpectedCounts, expected_counts
from specdec_core.offline.replay.text_acceptance import TextAcceptance

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Replayed:
    """Counts of a run over recorded texts, one text at a time, in expectation given the texts.

    Attributes:
        metrics: Expected counts, which are not whole numbers, and expected times if costs were given. The time of
            reading prompts is not in them.
        steps_by_text: `[N]` float64, expected forward passes of the target for each text.
        tokens_by_text: `[N]` int64, its tokens.
        accepted_by_text: `[N]` float64, its expected accepted draft tokens.
        verified_by_text: `[N]` float64, its expected verified draft tokens.
        seconds_by_text: `[N]` float64, its expected seconds; None without costs.
        drawn: Standard error of the block efficiency that seeded draws of a controller's runs leave; None where
            the expectation is exact.
        notes: What a reader of the results should know.
    """

    metrics: Metrics
    steps_by_text: NDArray[np.float64]
    tokens_by_text: NDArray[np.int64]
    accepted_by_text: NDArray[np.float64]
    verified_by_text: NDArray[np.float64]
    seconds_by_text: NDArray[np.float64] | None = None
    drawn: float | None = None
    notes: tuple[str, ...] = ()


def expected_metrics(
    acceptance: Sequence[TextAcceptance],
    gamma: int | GammaController,
    *,
    rule: AcceptanceRule | None = None,
    greedy: bool = False,
    costs: StepCosts | None = None,
    draws: int = 8,
    seed: int = 0,
) -> Replayed:
    """Return the expected counts of a run.

    A fixed gamma is computed exactly. Any other controller is run step by step: the number of accepted tokens is
    drawn from its distribution, and the controller is told the step as in decoding.

    Args:
        acceptance: The drafter's acceptance along each text.
        gamma: The number of tokens drafted in each step, or the controller that decides it.
        rule: The acceptance rule, which `check_replayable` lets pass; None for Algorithm 1.
        greedy: Whether the target decodes greedily, which controllers are told. All rules accept the same then.
        costs: The times of steps with this drafter; None for counts alone.
        draws: Number of runs of each text that are drawn for a controller.
        seed: Seed of these draws.

    Raises:
        ConfigError: Drafts may be longer than those that are known or timed, the controller asks for trees, or the
            rule takes more of p than the record holds.
        PluginError: The controller fails.
    """
    if not acceptance:
        raise ConfigError("the record has no texts to replay.")
    longest = gamma.max_gamma if isinstance(gamma, GammaController) else gamma
    known = min(one.longest for one in acceptance)
    if not 0 <= longest <= known:
        raise ConfigError(
            f"gamma may be {longest}, but drafts of up to {known} tokens were replayed; replay the drafter with "
            f"max_gamma={longest} or more, or lower gamma."
        )
    if greedy:
        rule = None
    if costs is not None:
        costs.check(longest)
    tokens = np.array(list(map(len, acceptance)))
    if isinstance(gamma, GammaController) and type(gamma) is not FixedGamma:
        runs = draw_runs(acceptance, gamma, greedy, costs, draws, seed, rule=rule)
        return _drawn(runs, tokens, costs is not None)
    return _exact(expected_counts([one.drafted(longest, rule) for one in acceptance], longest), tokens, costs)


def _exact(counts: ExpectedCounts, tokens: NDArray[np.int64], costs: StepCosts | None) -> Replayed:
    by_length = counts.steps_by_length.sum(axis=0)
    calls = float(counts.draft_calls.sum())
    steps = float(counts.steps.sum())
    values: dict[str, Any] = {
        "tokens": int(tokens.sum()),
        "target_calls": steps,
        "row_steps": steps,
        "drafted": float(counts.drafted.sum()),
        "accepted": float(counts.accepted.sum()),
        "rejected": float(counts.rejected.sum()),
        "asked_at": _trimmed(counts.asked_at.sum(axis=0)),
        "verified_at": _trimmed(counts.verified_at.sum(axis=0)),
        "accepted_at": _trimmed(counts.accepted_at.sum(axis=0)),
        "draft_calls": calls,
        "timed_draft_calls": calls - float(counts.first_draft_calls.sum()),
        "steps_asked": _trimmed(counts.steps_by_asked.sum(axis=0)),
        "times": tuple(StepTimes(steps=value) for value in _trimmed(by_length)),  # type: ignore[arg-type]
    }
    seconds = None
    if costs is not None:
        seconds, times = _times(counts, costs)
        values |= times
    verified = counts.verified_at.sum(axis=1)
    return Replayed(Metrics(**values), counts.steps, tokens, counts.accepted, verified, seconds)


def _times(counts: ExpectedCounts, costs: StepCosts) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return the expected seconds of each text, and the fields of `Metrics` that hold times."""
    width = counts.steps_by_length.shape[1]
    verify, drafting = np.array(costs.verify[:width]), np.array(costs.draft[:width] or (0.0,))
    every = counts.steps_by_length + counts.first_length
    # A step that asked for nothing took nothing; one that asked and got nothing took D(0).
    idle = counts.steps_by_asked[:, :1] + counts.first_asked[:, :1]
    in_drafter = every @ drafting - idle[:, 0] * drafting[0]
    in_target = every @ verify
    seconds = in_drafter + in_target + counts.steps * costs.overhead
    timed = counts.steps_by_length.sum(axis=0)
    drafted = timed * drafting
    drafted[0] -= counts.steps_by_asked[:, 0].sum() * drafting[0]
    rows = zip(_trimmed(timed), drafted, timed * verify, strict=False)
    times = tuple(StepTimes(n, own, other, own + other + n * costs.overhead) for n, own, other in rows)  # type: ignore[arg-type]
    return seconds, {
        "seconds": float(seconds.sum()),
        "draft_seconds": float(in_drafter.sum()),
        "verify_seconds": float(in_target.sum()),
        "times": times,
    }


def _trimmed(values: NDArray[np.float64]) -> tuple[float, ...]:
    """Return values without zeros at the end."""
    indices = np.flatnonzero(values)
    return tuple(map(float, values[: indices[-1] + 1])) if len(indices) else ()


def _drawn(runs: DrawnRun, tokens: NDArray[np.int64], timed: bool) -> Replayed:
    totals = runs.steps.sum(axis=0)
    error = float(totals.std(ddof=1) / np.sqrt(len(totals)) / totals.mean()) if len(totals) > 1 else np.nan
    return Replayed(
        runs.metrics,
        runs.steps.mean(axis=1),
        tokens,
        runs.accepted.mean(axis=1),
        runs.verified.mean(axis=1),
        runs.seconds.mean(axis=1) if timed else None,
        float(runs.metrics.block_efficiency * error),
        runs.notes,
    )
