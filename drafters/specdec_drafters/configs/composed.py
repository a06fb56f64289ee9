"""What a study may say about drafters that are made of other drafters. Importing this imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from specdec_core.border import Nested, NestedDrafter, NestedGamma, PluginConfig
from specdec_core.registry import nested_settings
from specdec_core.settings import ModelSettings


class ChainConfig(PluginConfig):
    """Who is asked, in order, and when the next one is."""

    drafters: tuple[NestedDrafter, ...]
    """Who is asked, in order, one at least: names, or mappings with `name` and settings."""
    shortest: Annotated[int, Field(ge=1)] = 1
    """A draft of fewer tokens is replaced by the next drafter's, unless it was drawn at random."""

    @field_validator("drafters")
    @classmethod
    def _check_any(cls, drafters: tuple[Any, ...]) -> tuple[Any, ...]:
        if not drafters:
            raise ValueError("a chain of none has nobody to ask; name at least one drafter")
        return drafters


class HierarchicalConfig(PluginConfig, ModelSettings):
    """Which model drafts for the target, how it is loaded, and who drafts for that model."""

    drafter: Annotated[Any, Nested("drafter", same_target=False)]
    """Who guesses for the middle model: a name, or a mapping with `name` and settings."""
    gamma: NestedGamma
    """How many tokens are guessed for one call of the middle model: a number, a name, or a mapping."""

    @model_validator(mode="after")
    def _check_levels(self) -> HierarchicalConfig:
        if _place(self.model) in map(_place, _models_in(self)):
            raise ValueError(
                f"{self.model!r} comes again below itself, and would wait for its own guesses; each level guesses "
                "for the one above it and must be cheaper: name a smaller model there"
            )
        return self


def _place(model: str) -> str:
    """Return a model's name, the same for all spellings of a path that can be told alike without looking at it."""
    return os.path.normpath(Path(model).expanduser())


def _models_in(config: PluginConfig) -> Iterator[str]:
    """Yield the models that the plugins nested in some settings name, at any depth."""
    for nested in nested_settings(config):
        model = getattr(nested.config, "model", None)
        if isinstance(model, str):
            yield model
        yield from _models_in(nested.config)
