"""Lazy attributes of a package (PEP 562), so that importing the package does not import torch."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any


def lazy_imports(package: dict[str, Any]) -> None:
    """Import what a package imports under `if TYPE_CHECKING:` when it is first accessed; this is its `__all__`.

    For example::

        if TYPE_CHECKING:
            from mypackage.heavy import Model as Model

        lazy_imports(globals())

    To import a name as itself exports it (PEP 484).

    Args:
        package: The package's `globals()`.
    """
    statements = ast.parse(Path(package["__file__"]).read_text(encoding="utf-8")).body
    block = next(one for one in statements if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING")
    modules = {
        alias.name: str(one.module) for one in block.body if isinstance(one, ast.ImportFrom) for alias in one.names
    }

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(importlib.import_module(modules[name]), name)
        return value

    package.update(__all__=sorted(modules), __getattr__=load, __dir__=lambda: sorted({*package, *modules}))
