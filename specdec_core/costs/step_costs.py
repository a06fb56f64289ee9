"""The seconds of a step: T(k) of the target, D(k) of the drafter, and the overhead.

A step whose longest draft has k tokens takes

    S(k) = T(k) + D(k) + overhead,

where section 3.3 of the paper assumes T(k) = T(0), D(k) = k c T(0) and no overhead.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    Definition 3.7 and section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from statistics import median
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

from specdec_core.costs.interpolation import interpolated
from specdec_core.interface.errors import ConfigError
from specdec_core.theory.ranges import check, check_gamma

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A time in seconds."""
Spread = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""How well a time is known: half its 95% interval over its value."""


class StepCosts(BaseModel):
    """Seconds of a step by the length k = 0, 1, ... of its longest draft, with one target and one drafter."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

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

    def with_drafter(self, draft: Sequence[float], draft_spread: Sequence[float] = ()) -> StepCosts:
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
