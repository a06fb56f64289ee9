"""The registry: every plugin that is installed, by kind and name."""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from specdec_core.border import (
    Drafter,
    GammaController,
    LenienceController,
    PluginConfig,
    PluginKind,
    PluginSpec,
    TargetInfo,
    Trainer,
)
from specdec_core.errors import PluginError, SpecdecError, unknown_name
from specdec_core.registry.capabilities import check_capabilities
from specdec_core.registry.discovery import Announcement, Source, discover
from specdec_core.registry.hookspecs import WORD_FOR_KIND

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

PluginState: TypeAlias = Literal["ready", "broken", "conflict", "off"]
"""What can be had of a plugin: `conflict` where two have one name, `off` where SPECDEC_PLUGINS leaves it out."""

_BASES: dict[PluginKind, type] = {
    "drafter": Drafter,
    "gamma": GammaController,
    "lenience": LenienceController,
    "trainer": Trainer,
}


@dataclass(frozen=True)
class PluginRecord:
    """One line of the listing.

    Attributes:
        kind: What it plugs into; None for an entry point that announced nothing.
        name: The name used in a study, or the entry point's where there is none.
        distribution: The distribution that brought it.
        version: That distribution's version.
        entry_point: The entry point's name.
        state: `ready`, `broken` (see `reason`), `conflict` (two plugins claim the name), or `off` (not in the
            allow-list).
        reason: Why it is not ready.
        summary: One line on what it does.
    """

    kind: PluginKind | None
    name: str
    distribution: str
    version: str
    entry_point: str
    state: PluginState
    reason: str = ""
    summary: str = ""


class Registry:
    """Finds plugins once, lists them, and turns a name and settings into what they name."""

    def __init__(self, found: Iterable[EntryPoint] | None = None) -> None:
        """Load the installed plugins, or those of the given entry points."""
        self._announcements = discover(found)
        self._claims: dict[tuple[PluginKind, str], list[tuple[Source, PluginSpec]]] = defaultdict(list)
        for announcement in self._announcements:
            for spec in announcement.specs:
                self._claims[spec.kind, spec.name].append((announcement.source, spec))

    def names(self, kind: PluginKind) -> list[str]:
        """Return the names of a kind that may be asked for, sorted."""
        return sorted(name for (k, name), claims in self._claims.items() if k == kind and len(claims) == 1)

    def specs(self, kind: PluginKind) -> list[PluginSpec]:
        """Return the specifications of a kind that may be asked for, sorted by name."""
        return [self.spec(kind, name) for name in self.names(kind)]

    def spec(self, kind: PluginKind, name: str) -> PluginSpec:
        """Return the plugin of this kind and name.

        Raises:
            PluginError: When there is none, or when two distributions claim the name.
        """
        claims = self._claims.get((kind, name), [])
        if len(claims) == 1:
            return claims[0][1]
        if claims:
            raise PluginError(
                f"{_conflict(kind, name, claims)} Uninstall one, or list what to load in SPECDEC_PLUGINS."
            )
        raise PluginError(unknown_name(WORD_FOR_KIND[kind], name, self.names(kind)) + self._broken_note())

    def shorthand(self, kind: PluginKind) -> PluginSpec | None:
        """Return the plugin that a bare value means for this kind, or None when no plugin claims that.

        Raises:
            PluginError: When two plugins claim it.
        """
        claims = [spec for spec in self.specs(kind) if spec.shorthand is not None]
        if len(claims) > 1:
            names = " and ".join(f"{spec.name!r} ({self._origin(kind, spec.name)})" for spec in claims)
            raise PluginError(
                f"a bare value for a {WORD_FOR_KIND[kind]} is claimed by {names}; write {{name: ...}} instead."
            )
        return claims[0] if claims else None

    def create(self, kind: PluginKind, name: str, config: PluginConfig, target: TargetInfo | None = None) -> Any:
        """Import a plugin's class and make it: drafters from (config, target), all others from (config).

        Args:
            kind: What it plugs into.
            name: Its name.
            config: Its settings, already validated.
            target: What a drafter may know of the target; needed for drafters only.

        Raises:
            PluginError: When it cannot be imported or made; the message names plugin and distribution.
        """
        spec = self.spec(kind, name)
        whose = f"{WORD_FOR_KIND[kind]} {name!r} of {self._origin(kind, name)}"
        factory = _import(spec, whose)
        try:
            made = factory(config, self._with_build(target)) if kind == "drafter" else factory(config)
        except SpecdecError:
            raise  # says already what was given and what to do
        except Exception as error:
            raise PluginError(f"{whose} could not be set up: {type(error).__name__}: {error}") from error
        if not isinstance(made, _BASES[kind]):
            raise PluginError(f"{whose} makes a {type(made).__name__}, which is no {_BASES[kind].__name__}.")
        return made

    def _with_build(self, target: TargetInfo | None) -> TargetInfo | None:
        """Return what a drafter is told, with the means to make the plugins that are nested in its settings."""
        return None if target is None else replace(target, build=self._build)

    def _build(self, kind: PluginKind, config: PluginConfig, target: TargetInfo) -> Any:
        """Make a nested plugin; see `TargetInfo.build`.

        Raises:
            PluginError: It cannot be made, or cannot work for this target.
        """
        name = getattr(config, "name", None)
        if not isinstance(name, str):
            raise PluginError(
                f"a nested {WORD_FOR_KIND[kind]} was given as {config!r}, which does not say its name. Settings "
                "that were read from a study do; in Python, hand over the plugin itself where that is allowed."
            )
        check_capabilities(
            self.spec(kind, name),
            encoder_decoder=target.encoder_decoder,
            has_tokenizer=target.tokenizer is not None,
            has_hidden_states=target.features is not None,
        )
        return self.create(kind, name, config, target)

    def records(self) -> list[PluginRecord]:
        """Return a line for every plugin found, those that are broken or in conflict included."""
        records = [record for announcement in self._announcements for record in self._of(announcement)]
        return sorted(records, key=lambda r: (r.kind is None, r.kind or "", r.name, r.distribution))

    def _of(self, announcement: Announcement) -> list[PluginRecord]:
        source = announcement.source
        origin = (source.distribution, source.version, source.entry_point)
        if announcement.reason:
            state: PluginState = "off" if announcement.switched_off else "broken"
            return [PluginRecord(None, source.entry_point, *origin, state, announcement.reason)]
        return [self._record(spec, origin) for spec in announcement.specs]

    def _record(self, spec: PluginSpec, origin: tuple[str, str, str]) -> PluginRecord:
        claims = self._claims[spec.kind, spec.name]
        if len(claims) == 1:
            return PluginRecord(spec.kind, spec.name, *origin, "ready", "", spec.summary)
        reason = _conflict(spec.kind, spec.name, claims)
        return PluginRecord(spec.kind, spec.name, *origin, "conflict", reason, spec.summary)

    def _origin(self, kind: PluginKind, name: str) -> str:
        source = self._claims[kind, name][0][0]
        return f"{source.distribution} {source.version}".strip()

    def _broken_note(self) -> str:
        """Say what could not be loaded, and why: the name asked for may be among it."""
        missing = [a for a in self._announcements if a.reason]
        if not missing:
            return ""
        listed = "; ".join(f"{a.source.entry_point!r} of {a.source.distribution} ({a.reason})" for a in missing)
        return f" Not loaded: {listed}."


def _conflict(kind: PluginKind, name: str, claims: list[tuple[Source, PluginSpec]]) -> str:
    owners = " and ".join(f"{s.distribution} {s.version} (entry point {s.entry_point!r})" for s, _ in claims)
    return f"{WORD_FOR_KIND[kind]} {name!r} is claimed by {owners}."


def _import(spec: PluginSpec, whose: str) -> Any:
    module, _, attribute = spec.factory.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise PluginError(
            f"{whose} could not be imported from {spec.factory!r}: {type(error).__name__}: {error}"
        ) from error


@functools.cache
def default_registry() -> Registry:
    """Return the registry of what is installed; found once in a process."""
    return Registry()
