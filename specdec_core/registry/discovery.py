"""Finding and loading plugins, each on its own, so that a broken one stops nothing.

pluggy's own loader stops at the first entry point that fails to import; so the entry points are walked here,
and pluggy does the rest.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import pluggy

from specdec_core.border import PluginConfig, PluginSpec, TrainerConfig
from specdec_core.registry.flat import flat_settings
from specdec_core.registry.hookspecs import HOOK_OF_KIND, PROJECT, HookSpecs
from specdec_core.registry.stated_border import border_note, check_border

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ALLOW_LIST = "SPECDEC_PLUGINS"
"""Environment variable: the only distributions or entry points to load, separated by commas."""


@dataclass(frozen=True)
class Source:
    """Where a plugin comes from."""

    entry_point: str
    distribution: str
    version: str

    @classmethod
    def of(cls, entry_point: EntryPoint) -> Source:
        """Return the source of an entry point."""
        dist = entry_point.dist
        if dist is None:
            return cls(entry_point.name, "unknown distribution", "")
        return cls(entry_point.name, dist.name, dist.version)


@dataclass(frozen=True)
class Announcement:
    """What one entry point turned out to hold: specifications, or the reason why there are none."""

    source: Source
    specs: tuple[PluginSpec, ...] = ()
    reason: str = ""
    switched_off: bool = False


def discover(found: Iterable[EntryPoint] | None = None) -> list[Announcement]:
    """Load every plugin that is installed and allowed, and ask each for its specifications.

    Args:
        found: Entry points to use in place of the installed ones.
    """
    candidates = list(entry_points(group=PROJECT) if found is None else found)
    candidates.sort(key=lambda e: (Source.of(e).distribution, e.name))
    allowed = _allow_list()
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    announcements = []
    for entry_point in {(e.name, e.value, Source.of(e)): e for e in candidates}.values():
        source = Source.of(entry_point)
        if allowed is not None and not allowed & _names_of(source):
            reason = f"not named in {ALLOW_LIST}"
            announcements.append(Announcement(source, reason=reason, switched_off=True))
        else:
            announcements.append(_load(manager, entry_point, source))
    return announcements + _unmatched(allowed, candidates)


def _load(manager: pluggy.PluginManager, entry_point: EntryPoint, source: Source) -> Announcement:
    try:
        plugin = entry_point.load()
    except Exception as error:  # whatever a stranger's module raises
        return Announcement(source, reason=border_note(entry_point, source.distribution, error, _describe(error)))
    try:
        # Before its hooks are looked at: a plugin for another border may have some that this one does not know.
        mismatch = check_border(plugin, entry_point, source.distribution)
        if mismatch is not None:
            return Announcement(source, reason=mismatch)
        manager.register(plugin, name=f"{source.distribution}:{source.entry_point}")
    except Exception as error:
        return Announcement(source, reason=_describe(error))
    try:
        manager.check_pending()
        specs = [spec for kind in HOOK_OF_KIND for spec in _ask(manager, plugin, kind)]
        return Announcement(source, tuple(specs))
    except Exception as error:
        manager.unregister(plugin)
        return Announcement(source, reason=_describe(error))


def _ask(manager: pluggy.PluginManager, plugin: object, kind: str) -> list[PluginSpec]:
    hook = HOOK_OF_KIND[kind]
    others = [other for other in manager.get_plugins() if other is not plugin]
    answers: Sequence[Any] = manager.subset_hook_caller(hook, others)()
    specs = []
    for answer in answers:
        if not isinstance(answer, (list, tuple)):
            raise TypeError(f"{hook}() must return a list of PluginSpec, not {type(answer).__name__}")
        for spec in answer:
            _check(spec, kind, hook)
            specs.append(spec)
    return specs


def _check(spec: Any, kind: str, hook: str) -> None:
    if not isinstance(spec, PluginSpec):
        raise TypeError(f"{hook}() must return a list of PluginSpec, but it holds a {type(spec).__name__}")
    where = f"{hook}() announces {spec.name!r}"
    if spec.kind != kind:
        raise ValueError(f"{where} with kind {spec.kind!r}; this hook is for {kind!r}")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", str(spec.name)):
        raise ValueError(f"{where}: a name has letters, digits, '-', '_' and '.' only")
    if not re.fullmatch(r"[\w.]+:\w+", spec.factory):
        raise ValueError(f"{where} with factory {spec.factory!r}; it must read 'package.module:Class'")
    if not (isinstance(spec.config, type) and issubclass(spec.config, PluginConfig)):
        raise TypeError(f"{where} with config {spec.config!r}; it must be a subclass of PluginConfig")
    if "name" in spec.config.model_fields:
        raise ValueError(f"{where}, whose config has a field 'name'; that key holds the plugin's own name")
    if spec.shorthand is not None and spec.shorthand not in spec.config.model_fields:
        raise ValueError(f"{where} with shorthand {spec.shorthand!r}, which is no field of its config")
    if kind == "trainer":
        _check_trainer(spec, where)


def _check_trainer(spec: PluginSpec, where: str) -> None:
    """Refuse a trainer whose settings cannot be the options of a command."""
    if not issubclass(spec.config, TrainerConfig):
        raise TypeError(f"{where} with config {spec.config!r}; it must be a subclass of TrainerConfig")
    try:
        flat_settings(spec.config)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}, whose {error}") from error


def _allow_list() -> set[str] | None:
    value = os.environ.get(ALLOW_LIST)
    return None if value is None else {_normal(name) for name in value.split(",") if name.strip()}


def _unmatched(allowed: set[str] | None, candidates: Sequence[EntryPoint]) -> list[Announcement]:
    known = set().union(*(_names_of(Source.of(e)) for e in candidates))
    reason = f"named in {ALLOW_LIST}, but no installed distribution or entry point has this name"
    return [Announcement(Source(name, name, ""), reason=reason) for name in sorted((allowed or set()) - known)]


def _names_of(source: Source) -> set[str]:
    return {_normal(source.distribution), _normal(source.entry_point)}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
