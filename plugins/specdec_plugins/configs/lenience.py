"""What a study may say about controllers of lenience. Importing this imports no torch."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator

from specdec_core.border import LenienceConfig

Lenience: TypeAlias = Annotated[float, Field(gt=0, le=1)]
"""l of appendix A.5; 1 is lossless."""


class ConstantLenienceConfig(LenienceConfig):
    """How strictly to judge, always."""

    lenience: Lenience = 1.0
    """The factor l that q is multiplied with before the comparison; 1 is lossless."""

    @property
    def lossless(self) -> bool:
        """Whether l is 1."""
        return self.lenience == 1


class ArgmaxLenienceConfig(LenienceConfig):
    """How strictly to judge where decoding is argmax."""

    lenience: Lenience
    """l: a draft token is kept when it is at least l times as probable as the best one; 1 is lossless."""

    @property
    def lossless(self) -> bool:
        """Whether l is 1."""
        return self.lenience == 1


class ScheduleLenienceConfig(LenienceConfig):
    """How strictly to judge at which place of the text."""

    points: Annotated[tuple[tuple[Annotated[int, Field(ge=0)], Lenience], ...], Field(min_length=1)]
    """Pairs `[place, l]`, places ascending: the first new token has place 0. Before the first pair and behind the
    last, l is as there."""
    between: Literal["linear", "step"] = "linear"
    """How l goes from one pair to the next: in a straight line, or by staying as it is until there."""

    @field_validator("points")
    @classmethod
    def _check_ascending(cls, points: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        for (place, _), (following, _) in pairwise(points):
            if following <= place:
                raise ValueError(f"places must ascend, and {following} comes after {place}; sort the pairs")
        return points

    @property
    def lossless(self) -> bool:
        """Whether l is 1 everywhere."""
        return all(lenience == 1 for _, lenience in self.points)


class BudgetedLenienceConfig(LenienceConfig):
    """How far a text may be led away from the target's distribution."""

    deviation: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Total variation that each sequence may spend at most, summed over its judged tokens; where decoding is
    argmax, how many tokens may differ from the argmax. 0 is lossless."""
    least: Lenience = 0.1
    """The smallest l it may choose: no token becomes more than 1 / least times as probable."""
    length: Annotated[int, Field(ge=1)] | None = None
    """Tokens to spread the budget over; left out, as many as a sequence may have. Say it where texts end early."""

    @property
    def lossless(self) -> bool:
        """Whether nothing may be spent."""
        return self.deviation == 0 or self.least == 1
