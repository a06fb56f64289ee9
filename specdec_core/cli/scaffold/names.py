"""Names of a new plugin, and whether they are free."""

import importlib.util
import re
from dataclasses import dataclass
from importlib.metadata import packages_distributions

import specdec_core
import specdec_core.interface
from specdec_core.interface.errors import ConfigError, PluginError
from specdec_core.interface.spec import PluginKind
from specdec_core.registry.hookspecs import KIND_LABELS
from specdec_core.registry.registry import Registry

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
        ConfigError: The name is not valid or too long.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a valid plugin name: {_ALLOWED}, as in 'last-word'.")
    if len(name) > _MAX_LENGTH:
        raise ConfigError(
            f"{name[:20] + '...'!r} has {len(name)} characters; a plugin name has at most {_MAX_LENGTH}. "
            "Choose a shorter one."
        )
    distribution = f"specdec-{name.replace('_', '-')}"
    ending = kind.capitalize()
    camel = "".join(part.capitalize() for part in re.split("[-_]", name))
    stem = camel.removesuffix(ending) or camel
    if {stem + ending, f"{stem}Config"} & {*dir(specdec_core), *dir(specdec_core.interface)}:
        stem = f"My{stem}"  # the module imports a class of that name
    return Names(name, distribution, distribution.replace("-", "_"), stem + ending, f"{stem}Config")


def check_free(registry: Registry, kind: PluginKind, names: Names) -> None:
    """Reject a name that is taken.

    Args:
        registry: The installed plugins.
        kind: The kind of plugin. A drafter and a controller can share a name in studies.
        names: The plugin's names.

    Raises:
        PluginError: A plugin or a module has the name.
    """
    owner = None
    for record in registry.records():
        if record.kind == kind and _normal(record.name) == _normal(names.name):
            owner = f"{record.distribution} {record.version} has the {KIND_LABELS[kind]} {record.name!r}"
    if owner is None and importlib.util.find_spec(names.module) is not None:
        distributions = packages_distributions().get(names.module, [])
        owner = f"a module {names.module} is installed" + "".join(f", by {one}" for one in distributions[:1])
    if owner is not None:
        raise PluginError(
            f"the name {names.name!r} is taken: {owner}. Choose another, for example 'my-{names.name}', or "
            "uninstall that package first."
        )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
