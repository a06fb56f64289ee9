"""Find, list and create plugins. Importing this package does not import torch."""

from specdec_core.registry.hookspecs import HOOKS_BY_KIND, KIND_LABELS, PROJECT, HookSpecs, hookimpl
from specdec_core.registry.nesting import Keys, dotted, entries, marker_of, nested_settings
from specdec_core.registry.registry import PluginRecord, Registry, default_registry
from specdec_core.registry.requirements import (
    beyond_token_ids,
    check_requirements,
    encoder_mismatch,
)
from specdec_core.registry.settings_models import plugin_settings, plugin_types
from specdec_core.registry.shipped import drafter_settings, is_shipped, shipped_file
from specdec_core.registry.validation_errors import describe

__all__ = [
    "HOOKS_BY_KIND",
    "KIND_LABELS",
    "PROJECT",
    "HookSpecs",
    "Keys",
    "PluginRecord",
    "Registry",
    "beyond_token_ids",
    "check_requirements",
    "default_registry",
    "describe",
    "dotted",
    "drafter_settings",
    "encoder_mismatch",
    "entries",
    "hookimpl",
    "is_shipped",
    "marker_of",
    "nested_settings",
    "plugin_settings",
    "plugin_types",
    "shipped_file",
]
