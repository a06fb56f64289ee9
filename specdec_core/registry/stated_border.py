"""Which border a plugin says it was built for, also where its module cannot be imported."""

from __future__ import annotations

import ast
import importlib.util
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint
from typing import Any

import specdec_core
from specdec_core.border import version


def check_border(plugin: object, entry_point: EntryPoint, distribution: str) -> str | None:
    """Return why the border that a loaded plugin states cannot be had here; None where it can, or states none.

    Args:
        plugin: The module that its entry point names, or an object of that module.
        entry_point: Where it was announced. Its module is asked where the object itself states nothing.
        distribution: The distribution that it comes from.
    """
    stated = getattr(plugin, version.STATEMENT, None)
    if stated is None:
        stated = getattr(sys.modules.get(entry_point.module), version.STATEMENT, None)
    return _mismatch(stated, distribution)


def border_note(entry_point: EntryPoint, distribution: str, error: Exception, described: str) -> str:
    """Return why a plugin could not be imported, with what that may have to do with the border.

    A plugin for another border often fails while it is imported, on a name that this border does not have. What
    it states is then read from its source, which is not run.

    Args:
        entry_point: Where it was announced.
        distribution: The distribution that it comes from.
        error: What its import raised.
        described: The same as text.
    """
    mismatch = _mismatch(stated_in_source(entry_point), distribution)
    if mismatch is not None:
        return f"{mismatch} ({described})"
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "specdec_core":
        here = f"border {version.BORDER_VERSION} of specdec (specdec-core {specdec_core.__version__})"
        return f"{described}; this is {here}"
    return described


def stated_in_source(entry_point: EntryPoint) -> Any:
    """Return the border that a module states as a literal at its top level; None where that cannot be found."""
    with suppress(Exception):  # of a stranger's module that fails anyway
        spec = _find(entry_point.module)
        source = spec.loader.get_source(spec.name)  # type: ignore[union-attr]  # loaders without it are suppressed
        for node in ast.parse(source).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == version.STATEMENT for target in targets):
                return ast.literal_eval(node.value)
    return None


def _find(module: str) -> ModuleSpec:
    """Find a module without importing the packages it is in.

    Raises:
        ModuleNotFoundError: There is none.
    """
    top, *inner = module.split(".")
    spec = importlib.util.find_spec(top)
    for part in inner:
        if spec is None:
            break
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    if spec is None:
        raise ModuleNotFoundError(module)
    return spec


def _mismatch(stated: Any, distribution: str) -> str | None:
    return version.border_mismatch(stated, distribution, specdec_core.__version__)
