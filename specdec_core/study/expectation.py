"""What a run should have gained on this machine: Theorem 3.8 without its assumptions, from what the steps took.

The theorem takes it that verifying a draft costs no more than a plain call, that drafts are kept alike at every
position, and that nothing but the two models takes time. Here a step whose longest draft has k tokens takes

    S(k) = T(k) + D(k) + O

with T(k) of the target, as all runs of the study measured it; D(k) of the run's drafter; and O, what the framework
adds. A draft goes on to position i, and is kept there, as often as it was. What lies outside of these steps stays
as it is: the prompts, which are read in the first step of a batch, and the set-up. This imports no torch.

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

from specdec_core.theory import expected_tokens_by_position, step_seconds

if TYPE_CHECKING:
    from specdec_core.decoding.metrics import Metrics, StepTimes

ENOUGH = 30
"""A time or a rate is trusted when it was measured so often in a repeat, or a quarter as often as any other.
Drafts that end with their sequence have every length, and are too few to say what it takes."""


@dataclass(frozen=True)
class Shares:
    """Where the wall time of a run went; the shares sum to 1.

    Attributes:
        target: In the target, as far as a plain call takes.
        verifying: In the target beyond that, because there was a draft to verify.
        drafting: In the drafter.
        framework: In these steps, but in neither of the two.
        outside: Outside of these steps: reading the prompts, in the first step of a batch, and setting up.
    """

    target: float
    verifying: float
    drafting: float
    framework: float
    outside: float


def verify_cost(plain: Metrics, times: Sequence[StepTimes]) -> dict[int, float]:
    """Return T(k) / T(0) for each length k of draft that was measured often enough.

    Args:
        plain: The baseline, which says T(0).
        times: Steps of the same target, by length of draft: of all runs that were timed beside it.

    Returns:
        By k; 1 for 0. Empty when the baseline has no step but those with the prompts.
    """
    unit = plain.verify_seconds_per_call
    if not unit:
        return {}
    return {0: 1.0} | {k: time.verify_seconds / time.steps / unit for k, time in _drafting(times).items()}


def draft_cost(run: Metrics, plain: Metrics) -> dict[int, float]:
    """Return D(k) / T(0), what the drafter takes for a draft of k tokens, as `verify_cost` does for the target."""
    unit = plain.verify_seconds_per_call
    if not unit:
        return {}
    known = _drafting(run.times)
    if run.times and run.times[0].steps >= ENOUGH:
        known = {0: run.times[0], **known}
    return {k: time.draft_seconds / time.steps / unit for k, time in known.items()}


def _drafting(times: Sequence[StepTimes]) -> dict[int, StepTimes]:
    """Return the times of steps with a draft, of the lengths that were seen often enough."""
    least = _least(time.steps for time in times[1:])
    return {k: time for k, time in enumerate(times) if k and time.steps >= least}


def _least(counts: Iterable[int]) -> float:
    """Return how often something must have been measured to be trusted."""
    return max(1, min(ENOUGH, max(counts, default=0) / 4))


def rates(run: Metrics) -> tuple[float, ...]:
    """Return how often a draft that was kept before a position goes on there and is kept, for each position.

    That counts against a drafter which proposes less than it was asked for, and not against one that was asked for
    less. It ends with the last position that was tried often enough: asked for behind a draft that was kept so
    far, whether or not there was a token. It is empty when nothing was drafted.
    """
    least = _least(run.judged_at)
    found: list[float] = []
    before = 1.0
    for asked, accepted in zip_longest(run.asked_at if run.judged_at else (), run.accepted_at, fillvalue=0):
        if before * asked < least:
            break
        kept = accepted / asked
        # A controller that asks for more where drafts are good makes positions behind look too good.
        found.append(min(1.0, kept / before))
        before = kept
    return tuple(found)


class Expectation:
    """What one repeat of a run says about every gamma.

    Args:
        run: What was counted and timed.
        plain: The same of the baseline, in the same repeat.
        cost: T(k) / T(0), as `verify_cost` returns it; not empty.
        rows: How many sequences were decoded.
        most: K, the longest draft that is thought of.
    """

    def __init__(self, run: Metrics, plain: Metrics, cost: Mapping[int, float], rows: int, most: int) -> None:
        self._run = run
        self._plain = plain
        self._cost = cost
        self._rows = rows
        self._most = max(most, len(run.times) - 1)

    @property
    def drafted(self) -> bool:
        """Whether drafts were judged and timed, as `at` needs it."""
        return bool(self._run.judged_at) and self._run.draft_seconds_per_call is not None

    @property
    def here(self) -> float:
        """The speed-up to be expected from the drafts as they were."""
        stepping = sum(time.steps * seconds for time, seconds in zip(self._run.times, self._seconds, strict=False))
        return self._speedup(self._outside + stepping)

    def at(self, gamma: int) -> float:
        """Return the speed-up to be expected with a fixed gamma; 1 for 0, since that needs no drafter.

        Positions beyond those that were judged are thought to be like the last one.

        Args:
            gamma: At most K.

        Raises:
            ValueError: When nothing was drafted.
        """
        if gamma == 0:
            return 1.0
        run, kept = self._run, rates(self._run)
        tokens = expected_tokens_by_position(kept, gamma)
        calls = (run.tokens + self._rows * _overshoot(kept, gamma)) / tokens
        # Rows of a batch end one by one: so many are decoded in a step.
        calls *= run.target_calls / run.row_steps
        return self._speedup(self._outside + max(0.0, calls - self._first_steps) * self._seconds_asked(gamma))

    @property
    def shares(self) -> Shares:
        """Where the time went."""
        run, times = self._run, self._run.times
        steps = sum(time.steps for time in times)
        verify = sum(time.verify_seconds for time in times)
        draft = sum(time.draft_seconds for time in times)
        target = min(verify, steps * self._unit)
        own = sum(time.seconds for time in times) - verify - draft
        parts = (target, verify - target, draft, own, self._outside)
        return Shares(*(part / run.seconds for part in parts))

    @property
    def drafting_steps(self) -> float:
        """The share of the steps that had a draft."""
        steps = [time.steps for time in self._run.times]
        return sum(steps[1:]) / max(1, sum(steps))

    @property
    def verify_excess(self) -> float:
        """What verifying took here over what the same drafts take in all runs of the study."""
        alike = sum(time.steps * cost for time, cost in zip(self._run.times, self._verify, strict=False))
        took = sum(time.verify_seconds for time in self._run.times)
        return took / (alike * self._unit) if alike else 1.0

    @property
    def _unit(self) -> float:
        """T(0), seconds."""
        return self._plain.verify_seconds_per_call or 0.0

    @property
    def _first_steps(self) -> int:
        return self._run.target_calls - sum(time.steps for time in self._run.times)

    @property
    def _outside(self) -> float:
        return self._run.seconds - sum(time.seconds for time in self._run.times)

    @cached_property
    def _verify(self) -> tuple[float, ...]:
        """T(k) / T(0), k = 0 ... K."""
        return step_seconds(0.0, self._most, self._cost)

    @cached_property
    def _seconds(self) -> tuple[float, ...]:
        """S(k), k = 0 ... K."""
        times = self._run.times
        steps = sum(time.steps for time in times)
        own = sum(time.seconds - time.draft_seconds - time.verify_seconds for time in times) / max(1, steps)
        each = (self._run.draft_seconds_per_call or 0.0) / self._unit
        known = draft_cost(self._run, self._plain)
        drafting = [known.get(k, k * each) for k in range(self._most + 1)]
        return tuple(
            self._unit * (verify + draft) + own for verify, draft in zip(self._verify, drafting, strict=True)
        )

    def _seconds_asked(self, gamma: int) -> float:
        """Return what a step takes in which gamma tokens are asked for, and some drafts are shorter."""
        reached = _reached([time.steps for time in self._run.times], self._run.steps_asked, gamma)
        seconds = self._seconds
        return seconds[0] + sum(share * (seconds[k] - seconds[k - 1]) for k, share in enumerate(reached, start=1))

    def _speedup(self, seconds: float) -> float:
        return (self._plain.seconds / self._plain.tokens) / (seconds / self._run.tokens)


def _overshoot(kept: Sequence[float], gamma: int) -> float:
    """Return how many tokens the last step of a sequence yields, on average, behind the sequence's end.

    With X tokens a step, that is E[X (X - 1)] / (2 E[X]), the mean excess of a renewal process; and
    E[X (X - 1)] / 2 = sum_i i P(X > i).
    """
    reached, beyond = 1.0, 0.0
    for place in range(1, gamma + 1):
        reached *= kept[min(place, len(kept)) - 1]
        beyond += place * reached
    return beyond / expected_tokens_by_position(kept, gamma)


def _reached(steps: Sequence[int], asked: Sequence[int], gamma: int) -> list[float]:
    """Return which share of the steps that asked for i tokens or more got as many, for i = 1 ... gamma.

    Beyond the longest that was asked for, drafts end as often as at the last position.
    """
    found: list[float] = []
    share, goes_on = 1.0, 1.0
    for place in range(1, gamma + 1):
        if (trials := sum(asked[place:])) > 0:
            now = min(share, sum(steps[place:]) / trials)
            goes_on = now / share if share else 0.0
            share = now
        else:
            share *= goes_on
        found.append(share)
    return found
