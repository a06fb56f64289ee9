"""The seconds of a step: T(k) of the target, D(k) of the drafter, and the overhead.

A step whose longest draft has k tokens takes

    S(k) = T(k) + D(k) + overhead,

where section 3.3 of the paper assumes T(k) = T(0), D(k) = k c T(0) and no overhead.

T(k) is a median: steps of one length do the same work, and what delays some of them is not part of it. D(k) is a
mean: drafts of one length may be made now by one part of a drafter and now by another, as in a chain, a hierarchy
or a search for text to copy, which take very different times. Seconds add up from the mean, and a median would
tell of the most frequent part alone.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    Definition 3.7 and section 3.3.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import hypot
from statistics import fmean, median
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

from specdec_core.interface import ConfigError, StepReport
from specdec_core.theory.intervals import relative_spread, relative_spread_of_mean
from specdec_core.theory.speed import check, check_gamma

NOISY = 0.02
"""Noise above this is warned of: seconds of steps that are known no better tell few runs apart."""
TIME_AGAIN = (
    "Time the steps again while the machine does nothing else: `specdec record --timings` renews the times in a "
    "record, `specdec measure` those in the file of a machine"
)
"""Advice where times are noisy."""
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A time in seconds."""
Spread = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""How well a time is known: half its 95% interval over its value."""


Timings = Mapping[int, Sequence[float]]
"""Seconds of steps by the length of their draft."""
_Averages = tuple[tuple[float, ...], tuple[float, ...]]


class FilePart(BaseModel):
    """Base of what a file holds: unknown keys are errors, and values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class StepCosts(FilePart):
    """Seconds of a step by the length k = 0, 1, ... of its longest draft, with one target and one drafter."""

    verify: Annotated[tuple[Seconds, ...], Field(min_length=1)]
    """T(k): the target's forward pass over k + 1 positions, and the acceptance. A median, which disturbed steps do
    not move."""
    draft: tuple[Seconds, ...] = ()
    """D(k): the drafter, for a draft of k tokens; empty without a drafter. A mean, as drafts of one length may
    take very different times, and a median would tell of one kind."""
    overhead: Seconds
    """A step outside of both models."""
    verify_spread: tuple[Spread | None, ...] = ()
    """How well each T(k) is known: half its 95% interval over its value; None where that is not known."""
    draft_spread: tuple[Spread, ...] = ()
    """The same for D(k)."""

    @model_validator(mode="before")
    @classmethod
    def _without_step(cls, value: Any) -> Any:
        """Drop what is written for readers, and follows from the rest."""
        return {key: each for key, each in value.items() if key != "step"} if isinstance(value, dict) else value

    @computed_field  # type: ignore[prop-decorator]
    @property
    def step(self) -> tuple[float, ...]:
        """S(k): the whole step, T(k) + D(k) + overhead."""
        draft = self.draft or (0.0,) * len(self.verify)
        return tuple(one + other + self.overhead for one, other in zip(self.verify, draft, strict=False))

    @property
    def c(self) -> float:
        """Time of the drafter for one token over T(0) (Definition 3.7).

        It is the least squares fit of k * c to D(k) / T(0).
        """
        if len(self.draft) < 2:
            return 0.0
        lengths = range(len(self.draft))
        return sum(k * self.draft[k] for k in lengths) / sum(k * k for k in lengths) / self.verify[0]

    @property
    def noise(self) -> float | None:
        """How well the seconds of a step are known, as a fraction; None if it is not known how well T(k) is.

        It is half the 95% interval of T(k) + D(k) over its value: the median over the draft lengths k.
        """
        none = (0.0,) * len(self.verify)
        lengths = zip(self.verify, self.verify_spread, self.draft or none, self.draft_spread or none, strict=False)
        found = [
            hypot(t * t_spread, d * d_spread) / (t + d)
            for t, t_spread, d, d_spread in lengths
            if t_spread is not None and t > 0
        ]
        return median(found) if found else None

    def with_drafter(self, draft: Sequence[float], draft_spread: Sequence[float] = ()) -> Self:
        """Return the costs of steps with this target and another drafter.

        Args:
            draft: Its D(k).
            draft_spread: How well each is known.
        """
        return self.model_copy(update={"draft": tuple(draft), "draft_spread": tuple(draft_spread)})

    def check(self, gamma: int) -> None:
        """Reject draft lengths that were not timed: nothing is extrapolated here.

        Args:
            gamma: The longest draft; 0 needs no drafter.

        Raises:
            ConfigError: The times end before.
        """
        for name, times in (("T(k)", self.verify), ("D(k)", self.draft)):
            if gamma and len(times) <= gamma:
                known = f"up to k = {len(times) - 1}" if times else "for no k"
                raise ConfigError(
                    f"drafts of up to {gamma} tokens take times that were not measured: {name} is known {known}. "
                    f"Measure with --gamma {gamma} or more, or replay with a smaller gamma."
                )


def step_seconds(
    c: float, gamma: int, verify: Sequence[float] | Mapping[int, float] | None = None
) -> tuple[float, ...]:
    """Return the time of steps with drafts of 0, 1, ... gamma tokens: k c + T(k), in units of T(0).

    Args:
        c: Cost coefficient, the time of one run of the drafter over that of one of the target (Definition 3.7).
        gamma: The longest draft.
        verify: T(k), the time in which the target verifies k draft tokens, in units of T(0). None is the
            assumption of section 3.3, T(k) = 1. A sequence gives it for k = 0, 1, ...; a mapping for the k that
            were measured, including 0. Others are `interpolated`.

    Returns:
        gamma + 1 numbers; the first is T(0).

    Raises:
        ValueError: When an argument is out of range, or T(0) is missing.

    References:
        Proof of Theorem 3.8, section 3.3, with T(k) instead of T.
    """
    check("c", c)
    check_gamma(gamma)
    known = dict(verify) if isinstance(verify, Mapping) else dict(enumerate((1.0,) if verify is None else verify))
    for k, value in known.items():
        check_gamma(k, name="each k in verify")
        check(f"verify[{k}]", value, above=True)
    if 0 not in known:
        raise ValueError("verify must include T(0), the time of a target call without a draft")
    return tuple(k * c + time for k, time in enumerate(interpolated(known, int(gamma))))


def interpolated(known: Mapping[int, float], longest: int, slope: float | None = None) -> tuple[float, ...]:
    """Return a value for every draft length 0, 1, ... `longest` from those of some lengths.

    This is the one rule for T(k), D(k) and their spreads. A length between two that are known is on the line
    between them. Below the first, its value holds. Beyond the last, the slope between the last two continues, if
    it is positive: more work never takes less time, so that a negative slope is noise.

    Args:
        known: Values by length.
        longest: The largest length.
        slope: What each token adds beyond the last known length, where more is known than the rule says; 0 keeps
            the last value.

    Returns:
        `longest` + 1 values; none if none is known.
    """
    if not known:
        return ()
    points = sorted(known.items())
    first, last = points[0], points[-1]
    values = [float(first[1])] * (first[0] + 1)
    per_token = 0.0
    for (low, left), (high, right) in pairwise(points):
        per_token = (right - left) / (high - low)
        values += [left + per_token * n for n in range(1, high - low)] + [float(right)]
    beyond = max(0.0, per_token) if slope is None else slope
    values += [last[1] + beyond * n for n in range(1, longest + 1 - last[0])]
    return tuple(values[: longest + 1])


def measured_costs(reports: Sequence[StepReport], gamma: int) -> StepCosts:
    """Return T(k) for every length up to gamma, and the overhead, of steps that were timed; see `interpolated`.

    Args:
        reports: The steps; each counts by the longest draft that was proposed.
        gamma: The longest draft.
    """
    timings = defaultdict[int, list[float]](list)
    for report in reports:
        timings[max(report.outcome.drafted)].append(report.verify_seconds)
    verify, spread = _averages(timings, gamma, median, relative_spread)
    rest = [one.step_seconds - one.verify_seconds - one.draft_seconds for one in reports]
    return StepCosts(verify=verify, verify_spread=spread, overhead=max(0.0, median(rest)))


def mean_seconds(timings: Timings, longest: int) -> _Averages:
    """Return the means for every length up to `longest`, and how well each is known; () if that is not known."""
    return _averages(timings, longest, fmean, relative_spread_of_mean)


def _averages(
    timings: Timings,
    longest: int,
    average: Callable[[Sequence[float]], float],
    spread: Callable[[Sequence[float]], float | None],
) -> _Averages:
    values = {k: average(each) for k, each in timings.items()}
    spreads = {k: spread(timings[k]) for k, value in values.items() if value > 0}
    known = {k: each for k, each in spreads.items() if each is not None}
    return interpolated(values, longest), interpolated(known, longest, slope=0.0)


@dataclass(frozen=True)
class Machine:
    """The costs of steps on a machine.

    Attributes:
        name: Its name in tables.
        device: Hardware of the target.
        target: T(k) and the overhead, without a drafter.
        drafters: The same with D(k) of a drafter, by `settings_key`.
    """

    name: str
    device: str
    target: StepCosts
    drafters: Mapping[str, StepCosts] = field(default_factory=dict)


def settings_key(drafter: Mapping[str, Any], draft_sampling: Mapping[str, Any] | None) -> str:
    """Return what tells a drafter from others: its settings, and those of its sampling, both as plain data."""
    return json.dumps([drafter, draft_sampling], sort_keys=True)
