"""Light descriptions of plugins: listing, validating and help need nothing else, and no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

PluginKind: TypeAlias = Literal["drafter", "gamma", "lenience"]


class PluginConfig(BaseModel):
    """Base of every plugin's settings: unknown keys are errors, values do not change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True)
class Capabilities:
    """What a drafter needs or cannot do; checked when the config is read.

    Attributes:
        max_batch: The largest batch it can draft for, or None for any.
        decoder_only: Works for decoder-only targets.
        encoder_decoder: Works for encoder-decoder targets.
        needs_tokenizer: Reads text, so the target must come with a tokenizer.
    """

    max_batch: int | None = None
    decoder_only: bool = True
    encoder_decoder: bool = True
    needs_tokenizer: bool = False


@dataclass(frozen=True)
class PluginSpec:
    """One plugin as its distribution announces it.

    Attributes:
        kind: What it plugs into.
        name: The name used in a study.
        factory: `package.module:Class`, imported only when a run needs it.
        config: The pydantic model of its settings. Its module must import without torch.
        summary: One line for listings.
        capabilities: What it needs or cannot do.
        shorthand: The setting that a bare value in a study fills: with `gamma`, `gamma: 5` means
            `gamma: {name: fixed, gamma: 5}`. None where a bare value has no meaning.
    """

    kind: PluginKind
    name: str
    factory: str
    config: type[PluginConfig] = PluginConfig
    summary: str = ""
    capabilities: Capabilities = field(default_factory=Capabilities)
    shorthand: str | None = None
