"""What a study may say about each drafter. Importing this imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from specdec_core.border import PluginConfig
from specdec_core.errors import ModelError
from specdec_core.settings import ModelSettings
from specdec_core.shipped import BUILTIN_PREFIX, builtin_arpa

BUILTIN_TEXTS = ("builtin:stdlib",)
"""Texts that are there without a file: the library of this Python."""


class RandomConfig(PluginConfig):
    """The random drafter has nothing to set."""


class PromptCopyConfig(PluginConfig):
    """How much of the end of a sequence must be met again before it is copied."""

    min_match: Annotated[int, Field(ge=1)] = 2
    """The fewest tokens that must agree; shorter matches draft nothing. More, where copies are often refused."""
    max_match: Annotated[int, Field(ge=1)] = 16
    """The most tokens compared: places that agree in as many count as equal."""
    prefer: Literal["recent", "frequent"] = "recent"
    """What is copied where several places agree in equally many tokens: the latest, or at each token what followed
    most often."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """The most tokens copied in a step; without it, as many as the gamma controller allows."""

    @model_validator(mode="after")
    def _check_order(self) -> PromptCopyConfig:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match ({self.min_match}) must not exceed max_match ({self.max_match})")
        return self


class NgramConfig(PluginConfig):
    """Where the n-grams come from: exactly one of `arpa` and `text`."""

    arpa: Path | None = None
    """An ARPA file whose words are token ids in decimal: what `specdec train ngram` writes, or `lmplz` makes of a
    text of token ids. Or one that ships with the built-in T5 pair, such as `builtin:translation-bigram`."""
    text: Annotated[str, Field(min_length=1)] | None = None
    """A UTF-8 text to count with the target's tokenizer, or `builtin:stdlib`, the library of this Python."""
    order: Annotated[int, Field(ge=1)] | None = None
    """The longest n-grams used: 1 is a unigram, 2 a bigram. By default all in `arpa`; 2 for `text`."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """The most bytes of text counted; by default a whole file, or 4 MB of `builtin:stdlib`."""

    @model_validator(mode="after")
    def _check_source(self) -> NgramConfig:
        if (self.arpa is None) == (self.text is None):
            given = "neither" if self.arpa is None else "both"
            raise ValueError(f"give either 'arpa' (an ARPA file) or 'text' (a text to count); {given} was given")
        if self.arpa is not None and str(self.arpa).startswith(BUILTIN_PREFIX):
            try:
                builtin_arpa(str(self.arpa))
            except ModelError as error:
                raise ValueError(str(error)) from error
        if self.arpa is not None and self.max_bytes is not None:
            raise ValueError("'max_bytes' limits a text that is counted; it has no meaning for 'arpa'")
        if self.text is not None and self.text.startswith("builtin:") and self.text not in BUILTIN_TEXTS:
            raise ValueError(f"unknown built-in text {self.text!r}. Available: {', '.join(BUILTIN_TEXTS)}.")
        return self


class TransformerConfig(PluginConfig, ModelSettings):
    """Which model drafts, and how it is loaded; its vocabulary must be the target's."""
