"""The optimal gamma controller: the gamma that maximizes the wall-time improvement, computed before decoding."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from specdec_core.costs import Measurement, Rate, best_gamma, read_measurement, step_seconds
from specdec_core.interface import BatchInfo, ConfigError, GammaController, GammaSession, PluginConfig
from specdec_core.interface.controllers import FixedGammaSession
from specdec_core.interface.files import input_path
from specdec_plugins.gamma.settings import Cost, Count


class MeasuredSteps(BaseModel):
    """The measurements of one drafter in a file of `specdec measure`, filled in when the file is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    file: Path
    """The file they were read from."""
    rates: Annotated[tuple[Rate, ...], Field(min_length=1)]
    """Probability that each position of a draft holds a token and that it is accepted, given that all before it
    were."""
    seconds: Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)]
    """Average seconds of a step that may draft 0, 1, ... tokens."""


class OptimalGammaConfig(PluginConfig):
    """The best gamma by theory, computed from alpha and c or from a measurement.

    The input to the computation: `alpha` and `c`, or `measured`.
    """

    alpha: Rate | None = None
    """Expected acceptance rate of the drafter."""
    c: Cost | None = None
    """Cost coefficient c: the time of a draft token over that of a target forward pass."""
    verify_cost: tuple[float, ...] | None = None
    """T(k) / T(0) for k = 0, 1, ...: the time to verify k draft tokens, relative to none. Extrapolated with its
    last slope; by default 1 everywhere, as the paper assumes."""
    drafter: str | None = None
    """Name of the drafter in `measured`; required if the file has several."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Temperature of the acceptance in `measured`."""
    measured: MeasuredSteps | None = None
    """A file of `specdec measure --output`, relative to the study file. Results record its values."""
    max_gamma: Count = 16
    """The largest gamma considered; with `measured`, at most the longest draft that was timed."""

    @field_validator("measured", mode="before", json_schema_input_type=Path | MeasuredSteps)
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        """Take what is needed from a file of `specdec measure`; what is not a path is taken as it is."""
        if not isinstance(value, (str, Path)):
            return value
        folder = (info.context or {}).get("folder", Path())
        try:
            return _steps(read_measurement(input_path(value, folder)), Path(value), info.data)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        given = [name for name in ("alpha", "c", "verify_cost", "measured") if getattr(self, name) is not None]
        if given not in (["measured"], ["alpha", "c"], ["alpha", "c", "verify_cost"]):
            names = " and ".join(repr(name) for name in given) or "none of them"
            raise ValueError(f"give 'alpha' and 'c' (and 'verify_cost' if known), or 'measured'; got {names}")
        times = self.verify_cost
        if times is not None and not (times[:1] == (1,) and all(0 < time < math.inf for time in times)):
            raise ValueError(
                "verify_cost is T(k) / T(0) for k = 0, 1, ...: 1, then numbers above 0; got "
                f"{list(times)}. Divide all by the first"
            )
        for name in ("drafter", "temperature"):
            if self.measured is None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name!r} selects from 'measured'; give 'measured' too, or remove it")
        return self


def _steps(measurement: Measurement, file: Path, choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements of the chosen drafter and temperature."""
    drafter, acceptance = measurement.choose(file, choice.get("drafter"), choice.get("temperature", 1.0))
    seconds = drafter.seconds.step
    return {
        "file": file,
        "rates": acceptance.rates(len(seconds) - 1),
        "seconds": acceptance.mean_seconds(seconds),
    }


class OptimalGamma(GammaController):
    """Asks for the gamma with the most tokens per second in every step; 0 if drafting never pays.

    From alpha and c this is Theorem 3.8, with T(k) from `verify_cost` if given. From a measurement it is the same
    quotient without the assumptions of section 3.3: acceptance by position, and the measured times of steps.

    References:
        Theorem 3.8 and section 3.5 of arXiv 2211.17192.
    """

    def __init__(self, config: OptimalGammaConfig) -> None:
        super().__init__(config)
        self._gamma = best_gamma(*_rates_and_seconds(config))

    @property
    def max_gamma(self) -> int:
        """The largest gamma it ever asks for."""
        return self._gamma

    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch."""
        return FixedGammaSession(self._gamma, batch.batch_size)


def _rates_and_seconds(config: OptimalGammaConfig) -> tuple[Sequence[float], Sequence[float]]:
    """Return the acceptance by position, and the time of steps with 0, 1, ... `max_gamma` draft tokens."""
    if config.measured is not None:
        return config.measured.rates, config.measured.seconds[: config.max_gamma + 1]
    assert config.alpha is not None  # validated
    assert config.c is not None
    return (config.alpha,), step_seconds(config.c, config.max_gamma, config.verify_cost)
