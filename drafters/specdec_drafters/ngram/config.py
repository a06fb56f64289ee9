"""Settings of the ngram drafter and its trainer. Importing this imports no torch."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from specdec_core.interface import DrafterConfig, ModelError
from specdec_core.interface.files import input_path
from specdec_core.registry import is_shipped, shipped_file
from specdec_drafters.common import TextSource
from specdec_drafters.training.config import DataConfig

MAX_ORDER = 10
"""The highest order of an ARPA file, as for KenLM."""


_APPLIES = {
    "order": ("arpa", "text"),
    "max_bytes": ("text",),
    "words": ("kenlm",),
    "load_method": ("kenlm",),
}


class NgramConfig(DrafterConfig):
    """An n-gram model over tokens, from an ARPA file, counted from a text, or in KenLM.

    The source of the n-grams: one of `arpa`, `text` and `kenlm`.
    """

    token_ids_only: ClassVar[bool] = True

    arpa: Path | None = None
    """An ARPA file over decimal token ids, or a built-in one, such as `builtin:translation-bigram`."""
    text: TextSource | None = None
    """A UTF-8 text to count, or `builtin:stdlib`, the Python standard library."""
    kenlm: Path | None = None
    """A model for the `kenlm` package."""
    words: Literal["ids", "tokens", "text"] = "ids"
    """Words of the `kenlm` model: decimal token `ids`, `tokens` of the target's tokenizer, or their `text` without
    blanks around it."""
    load_method: Literal["lazy", "populate_or_lazy", "populate_or_read", "read"] = "lazy"
    """How KenLM reads a binary: `lazy` maps it into memory, `populate_or_lazy` also reads it at once, `read`
    copies it."""
    order: Annotated[int, Field(ge=1)] | None = None
    """The longest n-grams; by default all in `arpa`, 2 for `text`."""
    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """The most bytes to count; by default all, or 4 MB of `builtin:stdlib`."""
    candidates: Annotated[int, Field(ge=1)] = 512
    """The most tokens that q is spread over."""

    @model_validator(mode="after")
    def _check_source(self) -> NgramConfig:
        sources = {"arpa": self.arpa, "text": self.text, "kenlm": self.kenlm}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                "give one of 'arpa' (an ARPA file), 'text' (a text to count) and 'kenlm' (a model for KenLM); got "
                f"{' and '.join(given) or 'none'}"
            )
        self._check_applies(given[0])
        if self.kenlm is not None and find_spec("kenlm") is None:
            raise ValueError(missing_kenlm())
        if self.arpa is not None and is_shipped(self.arpa):
            try:
                find_arpa(self.arpa, Path())
            except ModelError as error:
                raise ValueError(str(error)) from error
        return self

    def _check_applies(self, source: str) -> None:
        """Check that no setting is given that the source of the n-grams does not have."""
        for name, sources in _APPLIES.items():
            if source not in sources and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name!r} applies to {' and '.join(map(repr, sources))}, not to {source!r}")


def missing_kenlm() -> str:
    """Return what to do where the `kenlm` package is not installed."""
    if sys.version_info >= (3, 13):
        install = "its release 0.3.0 does not compile on Python 3.13; use Python 3.11 or 3.12, and there "
    else:
        install = ""
    return (
        "'kenlm' needs the package kenlm, which is not installed: "
        f"{install}pip install 'specdec-core[kenlm]', which compiles it and needs a C++ compiler and CMake. "
        "Without it, give the ARPA file that the model was made from, as 'arpa'"
    )


def find_arpa(arpa: Path, folder: Path) -> Path:
    """Return the file that an `arpa` setting refers to.

    Args:
        arpa: An ARPA file, or one that ships, such as `builtin:translation-bigram`.
        folder: Base for relative paths.

    Raises:
        ModelError: No installed collection has this n-gram model.
        ConfigError: No file can have this name.
    """
    shipped = shipped_file(arpa, "n-gram model", "*.arpa", folder)
    return input_path(arpa, folder) if shipped is None else shipped


class NgramTrainerConfig(DataConfig):
    """Estimate an n-gram model from one of `text`, `ids` and `samples`, and write it as an ARPA file.

    For example, from the Python standard library:

    ```
    specdec train ngram --text builtin:stdlib --order 3 --output stdlib.3.arpa
    ```
    """

    order: Annotated[int, Field(ge=1, le=MAX_ORDER)] = 3
    """The longest n-grams."""
    split: Literal["document", "line"] = "document"
    """The sentences of `text`; no n-gram crosses the end of one."""

    @model_validator(mode="after")
    def _check_source(self) -> NgramTrainerConfig:
        sources = {"text": self.text, "ids": self.ids, "samples": self.samples}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                "give one of 'text' (a text to count), 'ids' (a file of token ids) and 'samples' (tokens to "
                f"sample from the target); got {' and '.join(given) or 'none'}"
            )
        if self.sources is not None and self.samples is None:
            raise ValueError(f"'sources' applies to 'samples', not to {given[0]!r}")
        if self.text is None:
            for name, is_set in (("max_bytes", self.max_bytes is not None), ("split", self.split != "document")):
                if is_set:
                    raise ValueError(f"{name!r} applies to 'text', not to {given[0]!r}")
        return self
