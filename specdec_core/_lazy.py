"""Lazy attributes of a package (PEP 562), so that importing the package does not import torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any


def lazy_attributes(package: dict[str, Any], names: Mapping[str, Sequence[str]]) -> None:
    """Add attributes to a package whose modules are imported on first access.

    Repeat the imports under `if TYPE_CHECKING:`, for type checkers and editors::

        if TYPE_CHECKING:
            from mypackage.heavy import Model, load

        lazy_attributes(globals(), {"mypackage.heavy": ("Model", "load")})

    Args:
        package: The package's `globals()`.
        names: The attributes that each module provides.
    """
    modules = {name: module for module, provided in names.items() for name in provided}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(importlib.import_module(modules[name]), name)
        return value

    def list_names() -> list[str]:
        return sorted({*package, *modules})

    package.update(__getattr__=load, __dir__=list_names)
