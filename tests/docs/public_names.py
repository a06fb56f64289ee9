"""The public names of every package."""

import importlib
import pkgutil

import specdec_core


def public_names() -> list[tuple[str, str]]:
    """Return every name in the `__all__` of a package, with the package."""
    packages = [specdec_core.__name__] + [
        found.name
        for found in pkgutil.walk_packages(specdec_core.__path__, "specdec_core.")
        if found.ispkg and not found.name.startswith("specdec_core.cli")
    ]
    return [
        (package, name)
        for package in packages
        for name in getattr(importlib.import_module(package), "__all__", ())
        if not name.startswith("__")
    ]
