"""The optimal-tree controller: the tree that maximizes the wall-time improvement, computed before decoding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from specdec_core.costs import interpolated
from specdec_core.interface import BatchInfo, ConfigError, GammaController, GammaSession, PluginConfig
from specdec_core.interface.controllers import FixedGammaSession
from specdec_core.measurement import Measurement, Rate
from specdec_core.theory import best_tree_at_cost
from specdec_plugins.gamma.config import Cost, Count, read_measured

Ranks = Annotated[tuple[Annotated[tuple[Rate, ...], Field(min_length=1)], ...], Field(min_length=1)]
"""Acceptance by depth and rank."""
Times = Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)]
"""T(k) / T(0) for k = 0, 1, ..."""


class MeasuredRanks(BaseModel):
    """The measurements of one drafter in a file of `specdec measure --ranks`, filled in when the file is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    file: Path
    """The file they were read from."""
    rates: Ranks
    """Acceptance by depth and rank."""
    c: Cost
    """Cost coefficient."""
    verify_cost: Times
    """T(k) / T(0)."""


class OptimalTreeGammaConfig(PluginConfig):
    """The best token tree by theory, computed from acceptance by rank and depth.

    The input to the computation: `rates`, with the costs if known, or `measured`.
    """

    rates: Ranks | None = None
    """For each depth, the probability that the child of rank 1, 2, ... is the accepted one. The last row also
    holds further down."""
    c: Cost | None = None
    """Cost coefficient c: the time of a level of the tree over that of a target forward pass; 0 by default."""
    verify_cost: Times | None = None
    """T(k) / T(0) for k = 0, 1, ...: the time to verify k nodes, relative to none. Extrapolated with its last
    slope; by default 1 everywhere, as the paper assumes."""
    drafter: str | None = None
    """Name of the drafter in `measured`; required if the file has several."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Temperature of the acceptance in `measured`."""
    measured: MeasuredRanks | None = None
    """A file of `specdec measure --ranks R --output`, relative to the study file. Results record its values."""
    nodes: Annotated[Count, Field(le=256)] = 16
    """Maximum number of nodes."""
    depth: Annotated[Count, Field(le=32)] = 8
    """Maximum length of a path."""

    @field_validator("measured", mode="before", json_schema_input_type=Path | MeasuredRanks)
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        return read_measured(value, info, _ranks)

    @model_validator(mode="after")
    def _check_source(self) -> OptimalTreeGammaConfig:
        if (self.rates is None) == (self.measured is None):
            given = "both" if self.rates is not None else "neither"
            raise ValueError(f"give 'rates' or 'measured'; got {given}")
        if self.measured is not None and (self.c is not None or self.verify_cost is not None):
            raise ValueError("'measured' has the costs; remove 'c' and 'verify_cost'")
        if self.verify_cost is not None and self.verify_cost[0] != 1:
            raise ValueError(
                f"verify_cost is T(k) / T(0) for k = 0, 1, ...: its first number is 1; got "
                f"{list(self.verify_cost)}. Divide all by the first"
            )
        for row in self.rates or ():
            if sum(row) > 1 + 1e-6:
                raise ValueError(
                    f"at most one child is accepted, so a row of rates sums to at most 1; got {list(row)}"
                )
        return self


def _ranks(measurement: Measurement, file: Path, choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements of the chosen drafter and temperature."""
    drafter, acceptance = measurement.choose(file, choice.get("drafter"), choice.get("temperature", 1.0), 1.0)
    if not acceptance.by_rank:
        raise ConfigError(
            f"{file}: acceptance by rank was not measured for {drafter.name}; measure it with `--ranks 4`, with a "
            "drafter that drafts trees."
        )
    unit = drafter.seconds.verify[0]
    return {
        "file": file,
        "rates": acceptance.by_rank,
        "c": drafter.c,
        "verify_cost": tuple(seconds / unit for seconds in drafter.seconds.verify),
    }


class OptimalTreeGamma(GammaController):
    """Asks for the tree with the most tokens per second in every step; for none if no tree pays.

    References:
        Sequoia's dynamic programme (arXiv 2402.12374, section 4.1), with acceptance by depth as well as by rank;
        Theorem 3.8 of arXiv 2211.17192 with T(k).
    """

    def __init__(self, config: OptimalTreeGammaConfig) -> None:
        super().__init__(config)
        source = config if config.measured is None else config.measured
        assert source.rates is not None  # validated
        verify = None
        if source.verify_cost is not None:
            verify = interpolated(dict(enumerate(source.verify_cost)), config.nodes)
        self._tree = best_tree_at_cost(source.rates, config.nodes, config.depth, source.c or 0.0, verify)

    @property
    def max_gamma(self) -> int:
        """The number of nodes."""
        return len(self._tree)

    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch."""
        return FixedGammaSession(self.max_gamma, batch.batch_size, self._tree if len(self._tree) else None)
