"""Find, list and create plugins. Importing this package does not import torch."""

from specdec_core.registry.hookspecs import HOOKS_BY_KIND, KIND_LABELS, PROJECT, HookSpecs, hookimpl
from specdec_core.registry.nesting import MAX_DEPTH, depth_of, dotted, marker_of, nested_settings
from specdec_core.registry.registry import PluginRecord, Registry, default_registry
from specdec_core.registry.requirements import (
    beyond_token_ids,
    check_capabilities,
    encoder_mismatch,
    rule_problems,
    unmet_requirements,
)
from specdec_core.registry.settings import plugin_settings, plugin_types
from specdec_core.registry.validation_errors import describe

__all__ = [
    "HOOKS_BY_KIND",
    "KIND_LABELS",
    "MAX_DEPTH",
    "PROJECT",
    "HookSpecs",
    "PluginRecord",
    "Registry",
    "beyond_token_ids",
    "check_capabilities",
    "default_registry",
    "depth_of",
    "describe",
    "dotted",
    "encoder_mismatch",
    "hookimpl",
    "marker_of",
    "nested_settings",
    "plugin_settings",
    "plugin_types",
    "rule_problems",
    "unmet_requirements",
]
