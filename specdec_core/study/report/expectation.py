"""The speed-up to expect from a run on this machine: Theorem 3.8 without its assumptions, from measured steps.

Theorem 3.8 assumes that verifying a draft takes no longer than a target call without one, that every position has
the same acceptance rate, and that nothing but the two models takes time. Here a step whose longest draft has k
tokens takes

    S(k) = T(k) + D(k) + O,

where T(k) is the target's time as measured over all runs of the task, D(k) the time of this run's drafter, and O
the overhead of the framework. Acceptance is counted by position. Time outside these steps is fixed: set-up, and
the first step of a batch, which reads the prompts. `specdec_core.costs.forecast` turns both into a wall time.
Importing this imports no torch.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING

from specdec_core.costs.forecast import Workload, reach_by_length, requested_seconds
from specdec_core.costs.step_costs import StepCosts, interpolated

if TYPE_CHECKING:
    from specdec_core.decoding.counts import Metrics, StepTimes

MIN_COUNT = 30
"""A time or a rate is used if it was measured this often in a repeat, or a quarter as often as any other.
Drafts cut by the end of their sequence have every length, but are too few to be timed."""
PARTS = {
    "target": "target: as long as a forward pass without a draft",
    "verifying": "verifying: the target beyond that",
    "drafting": "drafting",
    "framework": "framework: steps, outside both models",
    "outside": "outside: prompts and set-up",
}
"""The parts of the wall time, and what they are. Prompts are read in the first step of a batch."""


def verify_cost(baseline: Metrics, times: Sequence[StepTimes]) -> dict[int, float]:
    """Return T(k) / T(0) for each draft length k that was measured often enough.

    Args:
        baseline: Metrics of the baseline, which give T(0).
        times: Steps of the same target by draft length, summed over all runs that were timed with it.

    Returns:
        The ratio by k; 1 for 0. Empty if the baseline has no step except those that read a prompt.
    """
    unit = baseline.verify_seconds_per_call
    if not unit:
        return {}
    return {0: 1.0} | {k: time.verify_seconds / time.steps / unit for k, time in _with_draft(times).items()}


def draft_cost(run: Metrics, baseline: Metrics) -> dict[int, float]:
    """Return D(k) / T(0), the drafter's time for k tokens, in the form of `verify_cost`."""
    unit = baseline.verify_seconds_per_call
    if not unit:
        return {}
    known = _with_draft(run.times)
    if run.times and run.times[0].steps >= MIN_COUNT:
        known = {0: run.times[0], **known}
    return {k: time.draft_seconds / time.steps / unit for k, time in known.items()}


def _with_draft(times: Sequence[StepTimes]) -> dict[int, StepTimes]:
    """Return the times of steps with a draft, for the lengths that were measured often enough."""
    required = _required(time.steps for time in times[1:])
    return {k: time for k, time in enumerate(times) if k and time.steps >= required}


def _required(counts: Iterable[int]) -> float:
    """Return how often something must have been measured to be used."""
    return max(1, min(MIN_COUNT, max(counts, default=0) / 4))


def speedup_bound(run: Metrics, baseline: Metrics) -> float | None:
    """Return the largest speed-up that is possible if no target call with a draft is cheaper than one without.

    A target call for n sequences takes a + b n. If one with a draft takes at least as long, and everything else
    takes no less than in the baseline, the speed-up is at most the larger of two ratios: tokens per target call
    (b = 0), and tokens per step and sequence (a = 0). With one sequence they are equal.

    Args:
        run: Metrics of the run.
        baseline: Metrics of the baseline in the same repeats.

    Returns:
        The bound; None if nothing was decoded, or an engine does not say in how many target calls.
    """
    if not run.target_calls or not baseline.target_calls:
        return None
    calls = (run.tokens / run.target_calls) / (baseline.tokens / baseline.target_calls)
    return max(calls, run.block_efficiency / baseline.block_efficiency)


def added_by_position(run: Metrics) -> tuple[float, ...]:
    """Return how often a draft that was accepted up to a position continues there and is accepted.

    The acceptance rate by position leaves out drafts that ended; here they count as rejected. A drafter that
    proposes fewer tokens than requested lowers these rates; a controller that requests fewer does not. The last
    rate is that of the last position that was tried often enough: requested after a draft that was accepted so
    far, whether or not the drafter proposed a token. Empty if nothing was drafted.
    """
    required = _required(run.verified_at)
    found: list[float] = []
    before = 1.0
    for requested, accepted in zip_longest(run.asked_at if run.verified_at else (), run.accepted_at, fillvalue=0):
        if before * requested < required:
            break
        reached = accepted / requested
        # A controller that requests more where drafts do well makes later positions look too good.
        found.append(min(1.0, reached / before))
        before = reached
    return tuple(found)


@dataclass(eq=False)
class Expectation:
    """The prediction of one repeat of a run for every gamma.

    Args:
        run: Metrics of the repeat.
        baseline: Metrics of the baseline in the same repeat.
        cost: T(k) / T(0), as `verify_cost` returns it; not empty.
        sequences: Number of sequences that were decoded.
        max_gamma: K, the longest draft to consider.
    """

    run: Metrics
    baseline: Metrics
    cost: Mapping[int, float]
    sequences: int
    max_gamma: int

    @property
    def drafted(self) -> bool:
        """Whether enough drafts were verified and timed, as `at` requires, and none of them trees."""
        run = self.run
        timed = run.draft_seconds_per_call is not None and not (run.tree_steps or run.forced)
        return timed and bool(added_by_position(run))

    @property
    def here(self) -> float:
        """The expected speed-up of the drafts as they were."""
        stepping = sum(
            time.steps * seconds for time, seconds in zip(self.run.times, self._costs.step, strict=False)
        )
        return self._speedup(self._outside + stepping)

    def at(self, gamma: int) -> float:
        """Return the expected speed-up with a fixed gamma; 1 for 0, which needs no drafter.

        Positions beyond those that were verified are assumed to be like the last one.

        Args:
            gamma: At most K.

        Raises:
            ValueError: If nothing was drafted.
        """
        if gamma == 0:
            return 1.0
        run = self.run
        workload = Workload(
            tokens=run.tokens,
            sequences=self.sequences,
            sequences_per_step=run.row_steps / run.target_calls if run.target_calls else 1.0,
            prompt_steps=run.target_calls - sum(time.steps for time in run.times),
            fixed_seconds=self._outside,
        )
        reach = reach_by_length([time.steps for time in run.times], run.steps_asked, gamma)
        seconds = requested_seconds(self._costs.step, reach)[gamma]
        return self._speedup(workload.seconds(added_by_position(run), gamma, seconds))

    @property
    def shares(self) -> dict[str, float]:
        """Where the wall time went, by `PARTS`; the shares sum to 1."""
        run, times = self.run, self.run.times
        steps = sum(time.steps for time in times)
        verify = sum(time.verify_seconds for time in times)
        draft = sum(time.draft_seconds for time in times)
        target = min(verify, steps * self._unit)
        own = sum(time.seconds for time in times) - verify - draft
        seconds = (target, verify - target, draft, own, self._outside)
        return {part: one / run.seconds for part, one in zip(PARTS, seconds, strict=True)}

    @property
    def _unit(self) -> float:
        """T(0) in seconds."""
        return self.baseline.verify_seconds_per_call or 0.0

    @property
    def _outside(self) -> float:
        return self.run.seconds - sum(time.seconds for time in self.run.times)

    @cached_property
    def _costs(self) -> StepCosts:
        """The costs of steps with drafts of up to K tokens; c per token where no draft was timed."""
        run, unit, longest = self.run, self._unit, max(self.max_gamma, len(self.run.times) - 1)
        steps = sum(time.steps for time in run.times)
        own = sum(time.seconds - time.draft_seconds - time.verify_seconds for time in run.times) / max(1, steps)
        drafting = {0: 0.0, **draft_cost(run, self.baseline)}
        if not any(drafting):
            drafting[1] = (run.draft_seconds_per_call or 0.0) / unit
        verify, draft = (interpolated(known, longest) for known in (self.cost, drafting))
        return StepCosts(
            verify=tuple(unit * ratio for ratio in verify),
            draft=tuple(unit * ratio for ratio in draft),
            overhead=max(0.0, own),
        )

    def _speedup(self, seconds: float) -> float:
        return (self.baseline.seconds / self.baseline.tokens) / (seconds / self.run.tokens)
