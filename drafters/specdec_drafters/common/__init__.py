"""Shared by several drafters. Importing this imports no numpy and no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

BUILTIN_STDLIB = "builtin:stdlib"
BUILTIN_TEXTS = (BUILTIN_STDLIB,)
"""Built-in texts: the Python standard library."""


def _check_text(name: str) -> str:
    if name.startswith("builtin:") and name not in BUILTIN_TEXTS:
        raise ValueError(f"unknown built-in text {name!r}. Available: {', '.join(BUILTIN_TEXTS)}.")
    return name


TextSource = Annotated[str, Field(min_length=1), AfterValidator(_check_text)]
"""A UTF-8 text: a file, or one of `BUILTIN_TEXTS`."""
