"""Settings of a target, as a study states them and a record keeps them. Importing this imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from specdec_core.interface.settings import ModelSettings
from specdec_core.interface.validated import Validated


class InflateConfig(Validated):
    """Add layers that change the target's cost but not its outputs, to study the c of larger models."""

    layers: Annotated[int, Field(ge=1)]
    """Number of layers to add; their output projections are zero."""
    width: Annotated[int, Field(ge=1)] | None = None
    """Feed-forward size of the added layers; by default that of the model."""
    encoder_width: Annotated[int, Field(ge=1)] | None = None
    """Feed-forward size of layers added to an encoder; by default `width`."""


class TargetConfig(ModelSettings):
    """The model whose distribution is preserved, and how it is loaded."""

    inflate: InflateConfig | None = None
    """Make the model slower without changing its distribution, to study speed."""
    tensor_parallel: Annotated[int, Field(ge=2)] | None = None
    """Share the weights among this number of processes, each with a GPU of its own, started by `torchrun`. Needs
    accelerate."""

    exact_shapes: bool | Annotated[int, Field(ge=2)] = False
    """Run every forward pass of a step over the same number of columns, with or without a draft, so that greedy
    texts do not depend on the drafter where rounding depends on shapes, as in bfloat16. A number: the columns, one
    more than the longest draft. `true`: 16."""

    def names(self) -> frozenset[str]:
        """Return the model and the adapter: folders, or names on the hub."""
        return frozenset(name for name in (self.model, self.adapter) if name is not None)

    @model_validator(mode="after")
    def _check_sharing(self) -> TargetConfig:
        if self.tensor_parallel is not None:
            alone: dict[str, object] = {
                "device": "auto",
                "device_map": None,
                "quantization_config": None,
                "adapter": None,
            }
            alone |= {"inflate": None, "packed": "auto", "compile": "auto", "exact_shapes": False}
            given = [name for name, value in alone.items() if getattr(self, name) != value]
            if given:
                raise ValueError(f"'tensor_parallel' and {given[0]!r} are both given; use one of them")
        if self.exact_shapes and self.compile is True:
            raise ValueError("'exact_shapes' and 'compile' are both given; use one of them")
        return self
