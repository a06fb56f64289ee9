"""Files that installed distributions ship: `NAME:ITEM`. Importing this imports no torch.

NAME is a collection of models, registered by the hook `specdec_models`; ITEM is a file in it, or the folder that
holds the file. What a reference means depends on what it is asked for::

    shipped_file("builtin:target", "model", "generation_config.json")  # .../target/generation_config.json
    shipped_file("builtin:translation-bigram", "n-gram model", "*.arpa")  # .../t5-ngram/translation-bigram.arpa
    shipped_file("owner/name", "model", "generation_config.json")      # None: a folder, or a name on the hub
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from specdec_core.interface import ModelsSpec
from specdec_core.interface.errors import ConfigError, ModelError, PluginError, exception_text, unknown_name
from specdec_core.interface.files import input_path
from specdec_core.registry.registry import default_registry

_REFERENCE = re.compile(r"([A-Za-z0-9][\w.-]+):([\w.-]+)")
"""The pattern of references to collections, installed or not. One letter and a colon are a drive."""
_SETTINGS = "drafters.json"
"""The file of a collection with settings of drafters for targets."""
_SETTINGS_FORM = TypeAdapter(dict[str, dict[str, dict[str, Any]]])
"""Target, name of the drafter, settings."""


def is_shipped(reference: str | Path) -> bool:
    """Return whether a text is `NAME:ITEM` with the name of an installed collection of models."""
    name, colon, _ = str(reference).partition(":")
    return bool(colon) and default_registry().registers("models", name)


def shipped_file(
    reference: str | Path,
    what: str,
    pattern: str,
    folder: Path = Path(),
    fits: Callable[[Path], bool] = lambda _: True,
) -> Path | None:
    """Return the file that `NAME:ITEM` refers to.

    Args:
        reference: What a user gave.
        what: What is asked for, such as `model`, for messages.
        pattern: The name of the file, in the folder ITEM; or `*.SUFFIX` if ITEM is the name of the file itself.
        folder: Base for relative paths.
        fits: Says which of these files are what is asked for.

    Returns:
        The file; None for anything but such a reference: a path, or a name on the hub.

    Raises:
        ModelError: The collection is not installed, or has no such item, or has two. The message lists its items.
    """
    if not is_shipped(reference) and not _may_be_reference(reference, folder):
        return None
    name, _, item = str(reference).partition(":")
    collection = _collection(reference)
    found: dict[str, list[Path]] = {}
    for path in sorted(collection.folder.rglob(pattern)):
        if fits(path):
            found.setdefault(path.stem if pattern.startswith("*") else path.parent.name, []).append(path)
    if item not in found:
        raise ModelError(unknown_name(what, str(reference), [f"{name}:{other}" for other in found]))
    if len(found[item]) > 1:
        there = " and ".join(str(path.relative_to(collection.folder)) for path in found[item])
        raise ModelError(f"{reference}: two files of the collection have this name, {there}; give a path.")
    return found[item][0]


def drafter_settings(target: str) -> Mapping[str, Any]:
    """Return the settings that installed collections recommend for a target, by the name of the drafter.

    Args:
        target: A reference such as `builtin:target`, or a name on the hub.

    Raises:
        ConfigError: The `drafters.json` of a collection is not a mapping of targets to settings.
    """
    settings: dict[str, Any] = {}
    own = target.partition(":")[0]
    # A collection knows its own targets best, so it comes last.
    for collection in sorted(default_registry().collections(), key=lambda one: one.name == own):
        path = collection.folder / _SETTINGS
        if not path.is_file():
            continue
        try:
            settings |= _SETTINGS_FORM.validate_json(path.read_bytes()).get(target, {})
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path}: this file of the collection of models {collection.name!r} is not a JSON mapping of "
                f"targets to settings by the name of a drafter: {exception_text(error)}"
            ) from error
    return settings


def _may_be_reference(text: str | Path, folder: Path) -> bool:
    """Return whether a text has the form of a reference, and no file or folder has this name."""
    try:
        return _REFERENCE.fullmatch(str(text)) is not None and not input_path(text, folder).exists()
    except (ConfigError, OSError):
        return False


def _collection(reference: str | Path) -> ModelsSpec:
    try:
        return default_registry().collection(str(reference).partition(":")[0])
    except PluginError as error:
        no_path = "" if is_shipped(reference) else "no such file or folder; "
        raise ModelError(f"{reference}: {no_path}{error}") from error
