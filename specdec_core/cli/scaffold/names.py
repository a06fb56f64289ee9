"""Names of a new plugin, and whether they are free."""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from typing import TYPE_CHECKING

import specdec_core
import specdec_core.interface
from specdec_core.interface.errors import ConfigError, PluginError
from specdec_core.registry import KIND_LABELS

if TYPE_CHECKING:
    from specdec_core.interface.spec import PluginKind
    from specdec_core.registry import Registry

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_MAX_LENGTH = 60  # files are named after it, and file names have at most 255 bytes
_ALLOWED = "use lowercase letters (a-z) and digits, start with a letter, and put a single '-' or '_' between words"


@dataclass(frozen=True)
class Names:
    """The names of a plugin, for example `last-word`.

    Attributes:
        name: In a study: `last-word`.
        distribution: For pip: `specdec-last-word`.
        module: For Python: `specdec_last_word`.
        class_name: The class: `LastWordDrafter`.
        config_name: The class of its settings: `LastWordConfig`.
    """

    name: str
    distribution: str
    module: str
    class_name: str
    config_name: str


def names_of(kind: PluginKind, name: str) -> Names:
    """Return all names that derive from a plugin's name.

    Raises:
        ConfigError: The name is not valid or too long; the message suggests another.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a valid plugin name: {_ALLOWED}, for example {_suggestion(name)!r}.")
    if len(name) > _MAX_LENGTH:
        raise ConfigError(
            f"{name[:20] + '...'!r} has {len(name)} characters; a plugin name has at most {_MAX_LENGTH}. "
            "Choose a shorter one."
        )
    distribution = f"specdec-{name.replace('_', '-')}"
    ending = kind.capitalize()
    camel = "".join(part.capitalize() for part in re.split("[-_]", name))
    stem = camel.removesuffix(ending) or camel
    if {stem + ending, f"{stem}Config"} & {*specdec_core.__all__, *specdec_core.interface.__all__}:
        stem = f"My{stem}"  # the module imports a class of that name
    return Names(name, distribution, distribution.replace("-", "_"), stem + ending, f"{stem}Config")


def check_free(registry: Registry, kind: PluginKind, names: Names) -> None:
    """Reject a name that is taken.

    Args:
        registry: The installed plugins.
        kind: The kind of plugin. A drafter and a controller can share a name in studies.
        names: The plugin's names.

    Raises:
        PluginError: A plugin, distribution or module has the name.
    """
    owner = _plugin(registry, kind, names) or _distribution(names) or _module(names)
    if owner is not None:
        raise PluginError(
            f"the name {names.name!r} is taken: {owner}. Choose another, for example 'my-{names.name}', or "
            "uninstall that package first."
        )


def _plugin(registry: Registry, kind: PluginKind, names: Names) -> str | None:
    for record in registry.records():
        if record.kind == kind and _normal(record.name) == _normal(names.name):
            origin = f"{record.distribution} {record.version}".strip()
            return f"{origin} has the {KIND_LABELS[kind]} {record.name!r}"
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
    return f"a module {names.module} exists" + (f" in {' and '.join(sorted(set(owners)))}" if owners else "")


def _suggestion(name: str) -> str:
    """Return a valid name that is similar."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", plain).lower()
    slug = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    found = slug if slug[:1].isalpha() else f"my-{slug or 'drafter'}"
    return found[:_MAX_LENGTH].rstrip("-")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
