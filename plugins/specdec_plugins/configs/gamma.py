"""What a study may say about controllers of gamma. Importing this imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from specdec_core.border import PluginConfig
from specdec_core.errors import ConfigError
from specdec_core.measurement.expectation import rates_by_position, seconds_by_gamma
from specdec_core.measurement.file import Measurement, Rate, read_measurement

Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A cost coefficient c (Definition 3.7)."""
Count = Annotated[int, Field(ge=1, strict=True)]
"""A number of draft tokens at which something is learnt."""
Memory = Annotated[float, Field(ge=0, lt=1)]
"""What the past weighs beside the present, step by step."""


class FixedGammaConfig(PluginConfig):
    """How many tokens to draft, always."""

    gamma: Annotated[int, Field(ge=0, strict=True)] = 5
    """Tokens drafted in a step; 0 is plain decoding."""


class MeasuredSteps(BaseModel):
    """What a file of `specdec measure` says of one drafter: filled in when the file is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    file: Path
    """Where it was read."""
    rates: Annotated[tuple[Rate, ...], Field(min_length=1)]
    """Probability that there is a token at each position of a draft and that it is accepted, given those before
    it."""
    seconds: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)]
    """What a step takes on average that may draft 0, 1, ... tokens."""


class OptimalGammaConfig(PluginConfig):
    """From what the best gamma is computed: `alpha` and `c`, or `measured`."""

    alpha: Rate | None = None
    """Expected acceptance rate E(beta) of the drafter."""
    c: Cost | None = None
    """Cost coefficient: the time of the drafter for a token over that of a plain target call."""
    verify: tuple[float, ...] | None = None
    """T(k) / T(0) for k = 0, 1, ...: what verifying k draft tokens takes, in plain target calls. Behind its end it
    goes on with the last slope. Left out, it is 1, as the paper assumes."""
    drafter: str | None = None
    """Which drafter of `measured` it is, by name; needed where the file has several."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Which acceptance of `measured` is taken, by temperature; 0 is argmax."""
    lenience: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Which acceptance of `measured` is taken, by lenience."""
    measured: MeasuredSteps | None = None
    """A file that `specdec measure --output` wrote; relative to the study. Results show what was read."""
    most: Annotated[Count, Field(le=1000)] = 16
    """The largest gamma considered; of `measured`, also not above what was timed."""

    @field_validator("measured", mode="before", json_schema_input_type=Path | MeasuredSteps)
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, (str, Path)):
            return value
        folder = (info.context or {}).get("folder", Path())
        file = Path(value)
        try:
            return _steps(read_measurement(folder / file.expanduser()), file, info.data)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _check_source(self) -> OptimalGammaConfig:
        given = [name for name in ("alpha", "c", "verify", "measured") if getattr(self, name) is not None]
        if given not in (["measured"], ["alpha", "c"], ["alpha", "c", "verify"]):
            said = " and ".join(repr(name) for name in given) or "none of them"
            raise ValueError(f"give 'alpha' and 'c' (and 'verify' if known), or 'measured'; {said} was given")
        if self.verify is not None and not _is_relative(self.verify):
            raise ValueError(
                f"verify holds T(k) / T(0) for k = 0, 1, ..., so 1 and then numbers above 0; {list(self.verify)} "
                "was given. Divide all by the first"
            )
        for name in ("drafter", "temperature", "lenience"):
            if self.measured is None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name!r} chooses from what was measured; it has no meaning without 'measured'")
        return self


def _is_relative(times: tuple[float, ...]) -> bool:
    return times[:1] == (1,) and all(0 < time < math.inf for time in times)


def _steps(measurement: Measurement, file: Path, choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file says of the drafter, temperature and lenience that were chosen."""
    settings = choice.get("drafter"), choice.get("temperature", 1.0), choice.get("lenience", 1.0)
    drafter, acceptance = measurement.choose(file, *settings)
    seconds = drafter.seconds.step
    return {
        "file": file,
        "rates": rates_by_position(acceptance, len(seconds) - 1) or (0.0,),
        "seconds": seconds_by_gamma(seconds, acceptance, measurement.batch_size),
    }


class AdaptiveGammaConfig(PluginConfig):
    """Between which bounds a gamma moves. It cannot reach 0, where nothing is drafted and nothing learnt."""

    initial: Count = 5
    """Gamma of a row at its beginning."""
    least: Count = 1
    """The smallest gamma."""
    most: Count = 16
    """The largest gamma."""

    @model_validator(mode="after")
    def _check_bounds(self) -> AdaptiveGammaConfig:
        if self.least > self.most:
            raise ValueError(f"least ({self.least}) must not exceed most ({self.most})")
        if not self.least <= self.initial <= self.most:
            raise ValueError(f"initial ({self.initial}) must be from least ({self.least}) to most ({self.most})")
        return self


class RunningAverageGammaConfig(AdaptiveGammaConfig):
    """How fast gamma follows the running average of beta, and within which bounds."""

    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 8.0
    """How far gamma moves in a step, in tokens for a slope of 1 of the wall-time improvement."""
    memory: Memory = 0.95
    """What remains of the average's weight after a step; the average is over some 1 / (1 - memory) steps."""
    c: Cost | None = 0.05
    """Cost coefficient: the time of the drafter for a token over that of a plain target call. `null` measures it
    while decoding; the same seed need not give the same tokens then."""


class AdditiveGammaConfig(AdaptiveGammaConfig):
    """By how much gamma grows and shrinks, and within which bounds."""

    most: Count = 20
    """The largest gamma."""
    up: Count = 2
    """Added after a draft of gamma tokens that were all accepted."""
    down: Count = 1
    """Taken away after a draft of which a token was rejected."""


class ConfidenceGammaConfig(PluginConfig):
    """Below which confidence a draft ends, and whether that is learnt."""

    threshold: Annotated[float, Field(ge=0, le=1)] = 0.4
    """A draft ends behind a token whose q(x) is below it; where it is learnt, what each row begins with."""
    most: Count = 16
    """The most tokens drafted in a step, however sure."""
    learn: bool = False
    """Have each row learn its threshold from what becomes of its drafts."""
    c: Cost = 0.05
    """For `learn`: cost coefficient, the time of the drafter for a token over that of a plain target call."""
    memory: Memory = 0.98
    """For `learn`: what remains of the weight of what was learnt after a step."""

    @model_validator(mode="after")
    def _check_learning(self) -> ConfidenceGammaConfig:
        for name in ("c", "memory"):
            if not self.learn and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name!r} is about learning the threshold; it has no meaning without 'learn: true'"
                )
        return self
