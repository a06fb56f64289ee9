"""Settings of the hierarchical drafter. Importing this imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, model_validator

from specdec_core.interface import DrafterConfig, ModelSettings, Nested, NestedDrafter, NestedGamma, PluginConfig
from specdec_core.registry import nested_settings


class HierarchicalConfig(DrafterConfig, ModelSettings):
    """A draft model that is itself accelerated by another drafter, to any depth.

    The model that drafts for the target, how to load it, and the drafter for that model.
    """

    model: Annotated[str, Field(min_length=1)] | None = None  # type: ignore[assignment]  # `middle` has one, too
    """The middle model: a folder, a hub name, or a built-in one."""
    middle: NestedDrafter | None = None
    """Instead of `model`, a drafter whose model is the middle model, such as `early-exit` or `quantized`."""

    drafter: Annotated[Any, Nested("drafter", same_target=False)]
    """The drafter for the middle model."""
    gamma: NestedGamma
    """Draft tokens per forward pass of the middle model: a number, or a controller."""

    @model_validator(mode="after")
    def _check_middle(self) -> HierarchicalConfig:
        if (self.model is None) == (self.middle is None):
            raise ValueError("give the middle model: either 'model', or 'middle', a drafter that has one")
        loading = sorted(self.model_fields_set & ModelSettings.model_fields.keys())
        if self.middle is not None and loading:
            raise ValueError(f"'middle' brings its model along; remove {' and '.join(map(repr, loading))}")
        return self

    @model_validator(mode="after")
    def _check_levels(self) -> HierarchicalConfig:
        if self.model is not None and _normalized(self.model) in map(_normalized, _models_in(self)):
            raise ValueError(
                f"{self.model!r} appears again below itself; each level drafts for the one above it and must be "
                "cheaper: name a smaller model there"
            )
        return self


def _normalized(model: str) -> str:
    """Return the name of a model in one spelling: the same for equivalent spellings of a path."""
    return os.path.normpath(os.path.expanduser(model))  # noqa: PTH111  (leaves the home of an unknown user as it is)


def _models_in(config: PluginConfig) -> Iterator[str]:
    """Yield the models named by nested plugins, at any depth."""
    for nested in nested_settings(config):
        model = getattr(nested.config, "model", None)
        if isinstance(model, str):
            yield model
        yield from _models_in(nested.config)
