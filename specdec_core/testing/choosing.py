"""Which plugin shall be judged, as a command line says it. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_core.border import PluginKind
from specdec_core.errors import ConfigError, unknown_name

JUDGED: tuple[PluginKind, ...] = ("drafter", "gamma", "lenience")
"""The kinds of plugins that there are checks of."""


def parse_plugin(text: str, where: str) -> tuple[PluginKind, str]:
    """Return kind and name of a plugin that is written `kind:name`.

    Args:
        text: As it was written.
        where: The option or argument, for messages.

    Raises:
        ConfigError: It is not written so, or there are no checks for that kind.
    """
    kind, colon, name = text.partition(":")
    if not colon or not name:
        raise ConfigError(f"{where} {text}: expected KIND:NAME, e.g. drafter:{text.strip(':') or 'prompt-copy'}.")
    if kind not in JUDGED:
        raise ConfigError(f"{where} {text}: " + unknown_name("kind of plugin", kind, JUDGED))
    return kind, name


def parse_settings(text: str, where: str) -> dict[str, Any]:
    """Return settings that are written as one YAML mapping.

    Args:
        text: As it was written; empty for none.
        where: The option, for messages.

    Raises:
        ConfigError: It is no YAML, or no mapping.
    """
    from specdec_core.study.source import parse_value

    value = parse_value(text, where) if text.strip() else {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where} {text}: expected a mapping of settings, e.g. '{{min_match: 2}}'.")
    return value


def parse_assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Return settings that are written as `key=value` each: a dotted key, and a value in YAML.

    Raises:
        ConfigError: One of them is written otherwise.
    """
    from specdec_core.study.overrides import set_dotted
    from specdec_core.study.source import parse_value

    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text}: expected key=value, e.g. min_match=2.")
        try:
            set_dotted(settings, key.strip(), parse_value(value, f"--set {text}"))
        except ConfigError as error:
            raise ConfigError(f"--set {error}") from None
    return settings
