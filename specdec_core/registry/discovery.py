"""Finding and loading of plugins.

Entry points are loaded one by one, because pluggy's own loader stops at the first that fails to import. Here a
broken plugin is recorded with its error, and the others still load.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pluggy

from specdec_core.interface import ModelsSpec, PluginSpec
from specdec_core.interface.errors import exception_text
from specdec_core.interface.spec import CONFIG_BASES, ListedKind
from specdec_core.registry.cli_fields import cli_fields
from specdec_core.registry.hookspecs import HOOKS_BY_KIND, PROJECT, HookSpecs

ALLOW_LIST = "SPECDEC_PLUGINS"
"""Environment variable that restricts loading to these distributions and entry points, separated by commas."""


@dataclass(frozen=True)
class Origin:
    """The entry point and distribution that a plugin comes from."""

    entry_point: str
    distribution: str
    version: str

    @classmethod
    def of(cls, entry_point: EntryPoint) -> Origin:
        """Return the origin of an entry point."""
        dist = entry_point.dist
        if dist is None:
            return cls(entry_point.name, "unknown distribution", "")
        metadata = dist.metadata  # parsed anew by each of dist.name and dist.version
        return cls(entry_point.name, metadata["Name"], metadata["Version"])


@dataclass(frozen=True)
class LoadedPlugin:
    """The result of loading one entry point.

    Attributes:
        origin: Where the plugin comes from.
        specs: The specifications that its hooks returned.
        reason: Why it was not loaded; empty if it was.
        disabled: Whether `SPECDEC_PLUGINS` excludes it.
    """

    origin: Origin
    specs: tuple[PluginSpec | ModelsSpec, ...] = ()
    reason: str = ""
    disabled: bool = False


def discover(candidates: Iterable[EntryPoint] | None = None) -> list[LoadedPlugin]:
    """Load plugins and call their hooks.

    Args:
        candidates: Entry points to load; all installed ones if None.
    """
    found = entry_points(group=PROJECT) if candidates is None else candidates
    origins = sorted(((Origin.of(e), e) for e in found), key=lambda pair: (pair[0].distribution, pair[1].name))
    allowed = _allow_list()
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    loaded_plugins = []
    for origin, entry_point in {(e.name, e.value, origin): (origin, e) for origin, e in origins}.values():
        if allowed is not None and not allowed & _names_of(origin):
            reason = f"not named in {ALLOW_LIST}"
            loaded_plugins.append(LoadedPlugin(origin, reason=reason, disabled=True))
        else:
            loaded_plugins.append(_load(manager, entry_point, origin))
    return loaded_plugins + _unmatched(allowed, [origin for origin, _ in origins])


def _load(manager: pluggy.PluginManager, entry_point: EntryPoint, origin: Origin) -> LoadedPlugin:
    plugin = None
    try:
        with redirect_stdout(sys.stderr):  # standard output is for results
            plugin = entry_point.load()
        manager.register(plugin, name=f"{origin.distribution}:{origin.entry_point}")
        manager.check_pending()
        specs = [spec for kind in HOOKS_BY_KIND for spec in _call_hook(manager, plugin, kind)]
        return LoadedPlugin(origin, tuple(specs))
    except Exception as error:
        if manager.is_registered(plugin):
            manager.unregister(plugin)
        return LoadedPlugin(origin, reason=exception_text(error))


def _call_hook(manager: pluggy.PluginManager, plugin: object, kind: ListedKind) -> list[PluginSpec | ModelsSpec]:
    hook = HOOKS_BY_KIND[kind]
    others = [other for other in manager.get_plugins() if other is not plugin]
    results: Sequence[Any] = manager.subset_hook_caller(hook, others)()
    expected = ModelsSpec if kind == "models" else PluginSpec
    specs = []
    for result in results:
        if not isinstance(result, (list, tuple)):
            raise TypeError(f"{hook}() must return a list of {expected.__name__}, not {type(result).__name__}")
        for spec in result:
            if not isinstance(spec, expected):
                raise TypeError(
                    f"{hook}() must return a list of {expected.__name__}, but it holds a {type(spec).__name__}"
                )
            _check_spec(spec, kind, hook)
            specs.append(spec)
    return specs


def _check_spec(spec: PluginSpec | ModelsSpec, kind: ListedKind, hook: str) -> None:
    where = f"{hook}() returns {spec.name!r}"
    if spec.kind != kind:
        raise ValueError(f"{where} with kind {spec.kind!r}; this hook registers {kind!r}")
    for name in (spec.name, *spec.aliases):
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", str(name)):
            raise ValueError(f"{where}: {name!r} may contain only letters, digits, '-', '_' and '.'")
    if isinstance(spec, ModelsSpec):
        _check_models(spec, where)
    else:
        _check_plugin(spec, where)


def _check_models(spec: ModelsSpec, where: str) -> None:
    if len(spec.name) < 2:
        raise ValueError(f"{where}; a name needs two characters or more, as {spec.name}: may be a drive")
    if not (isinstance(spec.folder, Path) and spec.folder.is_absolute() and spec.folder.is_dir()):
        raise ValueError(
            f"{where} with folder {spec.folder!r}; it must be the absolute Path of a folder that is installed, "
            "such as Path(__file__).parent"
        )


def _check_plugin(spec: PluginSpec, where: str) -> None:
    if len({spec.name, *spec.aliases}) <= len(spec.aliases):
        raise ValueError(f"{where} with aliases {spec.aliases!r}, which repeat a name")
    if not re.fullmatch(r"[\w.]+:\w+", spec.factory):
        raise ValueError(f"{where} with factory {spec.factory!r}; it must have the form 'package.module:Class'")
    base = CONFIG_BASES[spec.kind]
    if not (isinstance(spec.config, type) and issubclass(spec.config, base)):
        raise TypeError(f"{where} with config {spec.config!r}; it must be a subclass of {base.__name__}")
    if "name" in spec.config.model_fields:
        raise ValueError(f"{where}, whose config has a field 'name'; that key is reserved for the plugin's name")
    if spec.shorthand is not None and spec.shorthand not in spec.config.model_fields:
        raise ValueError(f"{where} with shorthand {spec.shorthand!r}, which is not a field of its config")
    if spec.kind == "trainer":
        _check_trainer(spec, where)


def _check_trainer(spec: PluginSpec, where: str) -> None:
    """Check that a trainer's settings can be command-line options."""
    try:
        cli_fields(spec.config)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}, whose {error}") from error


def _allow_list() -> set[str] | None:
    value = os.environ.get(ALLOW_LIST)
    return None if value is None else {_canonical(name) for name in value.split(",") if name.strip()}


def _unmatched(allowed: set[str] | None, origins: Sequence[Origin]) -> list[LoadedPlugin]:
    known = set().union(*(_names_of(origin) for origin in origins))
    reason = f"named in {ALLOW_LIST}, but no installed distribution or entry point has this name"
    return [LoadedPlugin(Origin(name, name, ""), reason=reason) for name in sorted((allowed or set()) - known)]


def _names_of(origin: Origin) -> set[str]:
    return {_canonical(origin.distribution), _canonical(origin.entry_point)}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
