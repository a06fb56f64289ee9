"""Settings of how often runs are timed. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from specdec_core.interface.validated import Validated


class RepeatsConfig(Validated):
    """How often each run is timed: until every speed-up is known well enough."""

    min: Annotated[int, Field(ge=1)] = 3
    """Time each run at least this often."""
    max: Annotated[int, Field(ge=1)] = 10
    """Time each run at most this often."""
    spread: Annotated[float, Field(gt=0)] = 0.05
    """Stop when half the interval of every run's speed-up is at most this fraction of it."""

    @model_validator(mode="after")
    def _check_order(self) -> RepeatsConfig:
        if self.max < self.min:
            raise ValueError(f"'max' ({self.max}) is less than 'min' ({self.min})")
        return self

    def once(self) -> RepeatsConfig:
        """Return the settings of a single repeat."""
        return self.model_copy(update={"min": 1, "max": 1})

    @model_serializer(mode="wrap")
    def _short(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any] | int:
        plain: dict[str, Any] = serialize(self)
        return self.min if self.min == self.max else plain


def _spell_out_repeats(value: Any) -> Any:
    """Expand a number of repeats, or `auto`, to a mapping."""
    if isinstance(value, (Mapping, RepeatsConfig)):
        return value
    if value == "auto":
        return {}
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(
            f"expected a number of at least 1, 'auto', or a mapping of min, max, spread; given {value!r}."
        )
    return {"min": value, "max": value}


AnyRepeats = Annotated[
    RepeatsConfig,
    BeforeValidator(
        _spell_out_repeats,
        json_schema_input_type=Annotated[int, Field(ge=1)] | Literal["auto"] | RepeatsConfig,
    ),
]
"""Repeats: a mapping, a fixed number, or `auto`."""
