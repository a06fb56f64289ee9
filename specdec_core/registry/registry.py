"""The registry of installed plugins, by kind and name, and how they are found.

Entry points are loaded one by one, because pluggy's own loader stops at the first that fails to import. Here a
broken plugin is recorded with its error, and the others still load.
"""

import functools
import importlib
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast

import pluggy

from specdec_core.interface import AcceptanceRule, DrafterConfig, ModelsSpec, PluginConfig, PluginSpec, Trainer
from specdec_core.interface.controllers import GammaController, LenienceController
from specdec_core.interface.drafter import Drafter, TargetInfo
from specdec_core.interface.errors import PluginError, SpecdecError, exception_text, unknown_name
from specdec_core.interface.spec import CONFIG_BASES, ListedKind, PluginKind
from specdec_core.registry.cli_fields import cli_fields
from specdec_core.registry.hookspecs import HOOKS_BY_KIND, KIND_LABELS, PROJECT, HookSpecs
from specdec_core.registry.requirements import TargetFacts, check_requirements

ALLOW_LIST = "SPECDEC_PLUGINS"
"""Environment variable that restricts loading to these distributions and entry points, separated by commas."""


@dataclass(frozen=True)
class Origin:
    """The entry point and distribution that a plugin comes from."""

    entry_point: str
    distribution: str
    version: str

    @classmethod
    def of(cls, entry_point: EntryPoint) -> Self:
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
    names = os.environ.get(ALLOW_LIST)
    allowed = None if names is None else {_canonical(name) for name in names.split(",") if name.strip()}
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    loaded_plugins = []
    for origin, entry_point in {(e.name, e.value, origin): (origin, e) for origin, e in origins}.values():
        if allowed is not None and not allowed & _names_of(origin):
            reason = f"not named in {ALLOW_LIST}"
            loaded_plugins.append(LoadedPlugin(origin, reason=reason, disabled=True))
        else:
            loaded_plugins.append(_load(manager, entry_point, origin))
    unmatched = (allowed or set()).difference(*(_names_of(origin) for origin, _ in origins))
    reason = f"named in {ALLOW_LIST}, but no installed distribution or entry point has this name"
    return loaded_plugins + [LoadedPlugin(Origin(name, name, ""), reason=reason) for name in sorted(unmatched)]


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
    try:
        if spec.kind == "trainer":
            cli_fields(spec.config)  # its settings are command-line options
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}, whose {error}") from error


def _names_of(origin: Origin) -> set[str]:
    return {_canonical(origin.distribution), _canonical(origin.entry_point)}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


_Claims: TypeAlias = "list[tuple[Origin, PluginSpec | ModelsSpec]]"
"""Everything that is registered under one name."""
PluginState: TypeAlias = Literal["ready", "broken", "conflict", "off"]
"""State of a plugin. `conflict`: another plugin has the same name. `off`: `SPECDEC_PLUGINS` excludes it."""

BASES: dict[PluginKind, type] = {
    "drafter": Drafter,
    "gamma": GammaController,
    "lenience": LenienceController,
    "rule": AcceptanceRule,
    "trainer": Trainer,
}
"""What the plugins of each kind derive from."""


@dataclass(frozen=True)
class PluginRecord:
    """One line of the plugin listing.

    Attributes:
        kind: The plugin's kind, or `models` for a collection of models; None if the entry point was not loaded.
        name: The name used in a study; the entry point's name if it was not loaded.
        distribution: The distribution that provides it.
        version: That distribution's version.
        entry_point: The entry point's name.
        state: `ready`, `broken`, `conflict` (two plugins have the same name), or `off` (excluded by
            `SPECDEC_PLUGINS`).
        reason: Why it is not ready.
        summary: One-line description.
        aliases: Other names it answers to.
    """

    kind: ListedKind | None
    name: str
    distribution: str
    version: str
    entry_point: str
    state: PluginState
    reason: str = ""
    summary: str = ""
    aliases: tuple[str, ...] = ()


class Registry:
    """Loads plugins once, lists them, and creates drafters, controllers and trainers by name.

    Args:
        entry_points: Entry points to load; all installed ones if None.
    """

    def __init__(self, entry_points: Iterable[EntryPoint] | None = None) -> None:
        self._loaded_plugins = discover(entry_points)
        self._claims: dict[tuple[ListedKind, str], _Claims] = defaultdict(list)
        for loaded_plugin in self._loaded_plugins:
            for spec in loaded_plugin.specs:
                for name in (spec.name, *spec.aliases):
                    self._claims[spec.kind, name].append((loaded_plugin.origin, spec))

    def names(self, kind: ListedKind) -> list[str]:
        """Return the names of the usable plugins of a kind, without aliases, sorted."""
        unique = [
            (name, owners[0][1]) for (k, name), owners in self._claims.items() if k == kind and len(owners) == 1
        ]
        return sorted(name for name, spec in unique if spec.name == name)

    def specs(self, kind: PluginKind) -> list[PluginSpec]:
        """Return the specifications of the usable plugins of a kind, sorted by name."""
        return [self.spec(kind, name) for name in self.names(kind)]

    def drafter_config(self, name: str) -> type[DrafterConfig]:
        """Return the class of a drafter's settings, which says what the drafter needs; see `spec`."""
        config = self.spec("drafter", name).config
        assert issubclass(config, DrafterConfig)  # checked when it was registered
        return config

    def spec(self, kind: PluginKind, name: str) -> PluginSpec:
        """Return the specification of the plugin with this kind and name or alias.

        Raises:
            PluginError: The plugin does not exist, or two plugins claim the name.
        """
        return cast("PluginSpec", self._claimed(kind, name))

    def collections(self) -> list[ModelsSpec]:
        """Return the usable collections of models, sorted by name."""
        return [self.collection(name) for name in self.names("models")]

    def collection(self, name: str) -> ModelsSpec:
        """Return the collection of models with this name.

        Raises:
            PluginError: The collection does not exist, or two distributions claim the name.
        """
        return cast("ModelsSpec", self._claimed("models", name))

    def registers(self, kind: ListedKind, name: str) -> bool:
        """Return whether a name is registered, by one distribution or more."""
        return (kind, name) in self._claims

    def _claimed(self, kind: ListedKind, name: str) -> PluginSpec | ModelsSpec:
        claims = self._claims.get((kind, name), [])
        if len(claims) == 1:
            return claims[0][1]
        if claims:
            raise PluginError(
                f"{_conflict(kind, name, claims)} Uninstall one, or list what to load in SPECDEC_PLUGINS."
            )
        others = [KIND_LABELS[other] for other, one in self._claims if one == name and other != kind]
        hint = f"It is a {others[0]}." if others else ""
        claimed = [spec for (other, _), found in self._claims.items() if other == kind for _, spec in found]
        aliases = {alias for spec in claimed for alias in spec.aliases}
        names = {spec.name for spec in claimed}
        raise PluginError(unknown_name(KIND_LABELS[kind], name, names, hint, aliases) + self._not_loaded_note())

    def shorthand(self, kind: PluginKind) -> PluginSpec | None:
        """Return the plugin that a bare value selects (`gamma: 4`), or None if no plugin claims it.

        Raises:
            PluginError: Two plugins claim it.
        """
        claims = [spec for spec in self.specs(kind) if spec.shorthand is not None]
        if len(claims) > 1:
            names = " and ".join(f"{spec.name!r} ({self._distribution(kind, spec.name)})" for spec in claims)
            raise PluginError(
                f"a bare value for a {KIND_LABELS[kind]} is claimed by {names}; write {{name: ...}} instead."
            )
        return claims[0] if claims else None

    def factory(self, kind: PluginKind, name: str) -> Any:
        """Return a plugin's factory, which is imported.

        Raises:
            ConfigError: No plugin has this name.
            PluginError: It cannot be imported.
        """
        return _import(self.spec(kind, name), self.described(kind, name))

    def create(self, kind: PluginKind, name: str, config: PluginConfig, target: TargetInfo | None = None) -> Any:
        """Import a plugin's factory and call it: `factory(config, target)` for drafters, else `factory(config)`.

        Args:
            kind: The plugin's kind.
            name: Its name.
            config: Its validated settings.
            target: The target's properties; required for drafters only.

        Raises:
            PluginError: The factory cannot be imported, fails, or returns an object of the wrong type. The message
                names the plugin and its distribution.
        """
        factory, whose = self.factory(kind, name), self.described(kind, name)
        try:
            if kind == "drafter":
                # `build` lets a drafter create the plugins nested in its settings.
                made = factory(config, target and replace(target, build=self._build))
            else:
                made = factory(config)
        except SpecdecError:
            raise  # its message already tells the user what to do
        except Exception as error:
            raise PluginError(f"{whose} could not be set up: {exception_text(error)}") from error
        if not isinstance(made, BASES[kind]):
            raise PluginError(f"{whose} makes a {type(made).__name__}, which is not a {BASES[kind].__name__}.")
        return made

    def _build(self, kind: PluginKind, config: PluginConfig, target: TargetInfo) -> Any:
        """Create a nested plugin; see `TargetInfo.build`.

        Raises:
            PluginError: It cannot be created, or does not support this target.
        """
        name = getattr(config, "name", None)
        if not isinstance(name, str):
            raise PluginError(
                f"a nested {KIND_LABELS[kind]} was given as {config!r}, which has no plugin name. Configs read "
                "from a study have one; in Python, pass the plugin itself where the drafter allows it."
            )
        check_requirements(self.spec(kind, name), TargetFacts.of(target))
        return self.create(kind, name, config, target)

    def records(self) -> list[PluginRecord]:
        """Return a record for every plugin, including broken and conflicting ones."""
        records = [record for loaded_plugin in self._loaded_plugins for record in self._records_of(loaded_plugin)]
        return sorted(records, key=lambda r: (r.kind is None, r.kind or "", r.name, r.distribution))

    def _records_of(self, loaded_plugin: LoadedPlugin) -> list[PluginRecord]:
        origin, reason = loaded_plugin.origin, loaded_plugin.reason
        where = origin.distribution, origin.version, origin.entry_point
        if reason:
            state: PluginState = "off" if loaded_plugin.disabled else "broken"
            return [PluginRecord(None, origin.entry_point, *where, state, reason)]
        found = []
        for spec in loaded_plugin.specs:
            claims = {name: self._claims[spec.kind, name] for name in (spec.name, *spec.aliases)}
            reason = " ".join(_conflict(spec.kind, name, each) for name, each in claims.items() if len(each) > 1)
            state = "conflict" if reason else "ready"
            found.append(PluginRecord(spec.kind, spec.name, *where, state, reason, spec.summary, spec.aliases))
        return found

    def described(self, kind: ListedKind, name: str) -> str:
        """Return a plugin's kind, name and distribution for messages: `drafter 'echo' of specdec-toys 1.0`."""
        return f"{KIND_LABELS[kind]} {name!r} of {self._distribution(kind, name)}"

    def origin(self, kind: ListedKind, name: str) -> Origin:
        """Return the distribution and entry point that a registered plugin comes from."""
        return self._claims[kind, name][0][0]

    def _distribution(self, kind: ListedKind, name: str) -> str:
        """Return the distribution and version that provide a plugin, for messages."""
        origin = self.origin(kind, name)
        return f"{origin.distribution} {origin.version}".strip()

    def _not_loaded_note(self) -> str:
        """Name the plugins that were not loaded; the requested name may belong to one of them."""
        missing = [plugin for plugin in self._loaded_plugins if plugin.reason]
        if not missing:
            return ""
        listed = "; ".join(f"{p.origin.entry_point!r} of {p.origin.distribution} ({p.reason})" for p in missing)
        return f" Not loaded: {listed}."


def _conflict(kind: ListedKind, name: str, claims: _Claims) -> str:
    owners = " and ".join(f"{s.distribution} {s.version} (entry point {s.entry_point!r})" for s, _ in claims)
    return f"{KIND_LABELS[kind]} {name!r} is claimed by {owners}."


def _import(spec: PluginSpec, whose: str) -> Any:
    module, _, attribute = spec.factory.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise PluginError(
            f"{whose} could not be imported from {spec.factory!r}: {exception_text(error)}"
        ) from error


@functools.cache
def default_registry() -> Registry:
    """Return the registry of all installed plugins. It is created once per process."""
    return Registry()
