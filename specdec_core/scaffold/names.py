"""What a new plugin is called, and whether that name is still to be had."""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from typing import TYPE_CHECKING

import specdec_core
from specdec_core.errors import ConfigError, PluginError
from specdec_core.registry import WORD_FOR_KIND

if TYPE_CHECKING:
    from specdec_core.border import PluginKind
    from specdec_core.registry import Registry

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_LONGEST = 60  # files are called after it, and a file's name may have 255 bytes
_ALLOWED = (
    "a name has small letters (a-z) and digits, begins with a letter, and may have a single '-' or '_' between "
    "words, so that a package, a module and a class can be called after it"
)


@dataclass(frozen=True)
class Names:
    """What a plugin called `last-word` is called elsewhere.

    Attributes:
        name: In a study: `last-word`.
        distribution: For pip: `specdec-last-word`.
        module: For Python: `specdec_last_word`.
        class_name: The class: `LastWordDrafter`.
        config_name: Its settings: `LastWordConfig`.
    """

    name: str
    distribution: str
    module: str
    class_name: str
    config_name: str


def names_of(kind: PluginKind, name: str) -> Names:
    """Return what goes by a name.

    Raises:
        ConfigError: The name cannot be one: what is allowed, and one that can; or how long it may be.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a plugin: {_ALLOWED}; for example {_suggestion(name)!r}.")
    if len(name) > _LONGEST:
        raise ConfigError(
            f"{name[:20] + '...'!r} has {len(name)} characters: a name for a plugin has {_LONGEST} at most, "
            "because a package, its files and a class are called after it. Choose a shorter one."
        )
    distribution = f"specdec-{name.replace('_', '-')}"
    ending = kind.capitalize()
    camel = "".join(part.capitalize() for part in re.split("[-_]", name))
    stem = camel.removesuffix(ending) or camel
    if {stem + ending, f"{stem}Config"} & set(specdec_core.__all__):
        stem = f"My{stem}"  # what the module imports has that name
    return Names(name, distribution, distribution.replace("-", "_"), stem + ending, f"{stem}Config")


def check_free(registry: Registry, kind: PluginKind, names: Names) -> None:
    """Refuse a name that something installed has.

    Args:
        registry: What is installed.
        kind: What the plugin plugs into; a drafter and a controller may share a name in studies.
        names: What it shall be called.

    Raises:
        PluginError: Who has it, and what to do.
    """
    owner = _plugin(registry, kind, names) or _distribution(names) or _module(names)
    if owner is not None:
        raise PluginError(
            f"the name {names.name!r} is taken: {owner}. Choose another, for example 'my-{names.name}', or "
            "uninstall that one first."
        )


def _plugin(registry: Registry, kind: PluginKind, names: Names) -> str | None:
    for record in registry.records():
        if record.kind == kind and _normal(record.name) == _normal(names.name):
            origin = f"{record.distribution} {record.version}".strip()
            return f"{origin} brings the {WORD_FOR_KIND[kind]} {record.name!r}"
    return None


def _distribution(names: Names) -> str | None:
    try:
        return f"the distribution {names.distribution} {distribution(names.distribution).version} is installed"
    except PackageNotFoundError:
        return None


def _module(names: Names) -> str | None:
    if importlib.util.find_spec(names.module) is None:
        return None
    owners = packages_distributions().get(names.module, [])
    return f"there is a module {names.module}" + (f", of {' and '.join(sorted(set(owners)))}" if owners else "")


def _suggestion(name: str) -> str:
    """Return a name that can be one, near to what was given."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", plain).lower()
    slug = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    found = slug if slug[:1].isalpha() else f"my-{slug or 'drafter'}"
    return found[:_LONGEST].rstrip("-")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
