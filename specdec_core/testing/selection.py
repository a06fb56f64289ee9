"""Parses the plugin and its settings from the command line. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_core.interface import PluginKind
from specdec_core.interface.errors import ConfigError, unknown_name

CHECKED_KINDS: tuple[PluginKind, ...] = ("drafter", "gamma", "lenience", "rule")
"""The kinds of plugins that have checks."""


def parse_plugin(text: str, where: str) -> tuple[PluginKind, str]:
    """Parse `kind:name`.

    Args:
        text: The text.
        where: The option or argument, for messages.

    Raises:
        ConfigError: The text has another form, or there are no checks for that kind.
    """
    kind, colon, name = text.partition(":")
    if not colon or not name:
        raise ConfigError(f"{where} {text}: expected KIND:NAME, e.g. drafter:{text.strip(':') or 'prompt-copy'}.")
    if kind not in CHECKED_KINDS:
        raise ConfigError(f"{where} {text}: " + unknown_name("kind of plugin", kind, CHECKED_KINDS))
    return kind, name


def parse_settings(text: str, where: str) -> dict[str, Any]:
    """Parse settings from one YAML mapping.

    Args:
        text: The text; may be empty.
        where: The option, for messages.

    Raises:
        ConfigError: The text is not YAML, or not a mapping.
    """
    from specdec_core.study.config.yaml_source import parse_value

    value = parse_value(text, where) if text.strip() else {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where} {text}: expected a mapping of settings, e.g. '{{min_match: 2}}'.")
    return value


def parse_assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Parse settings of the form `key=value`, with a dotted key and a YAML value.

    Raises:
        ConfigError: A setting has another form.
    """
    from specdec_core.study.config.overrides import set_dotted
    from specdec_core.study.config.yaml_source import parse_value

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
