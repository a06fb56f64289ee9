"""What is installed, and how to get at it. Importing this imports no torch."""

from specdec_core.registry.capabilities import check_capabilities, encoder_mismatch
from specdec_core.registry.hookspecs import HOOK_OF_KIND, PROJECT, WORD_FOR_KIND, HookSpecs, hookimpl
from specdec_core.registry.needs import unmet_needs
from specdec_core.registry.nesting import MOST_DEEP, NestedSetting, depth_of, marker_of, nested_settings
from specdec_core.registry.registry import PluginRecord, Registry, default_registry

__all__ = [
    "HOOK_OF_KIND",
    "MOST_DEEP",
    "PROJECT",
    "WORD_FOR_KIND",
    "HookSpecs",
    "NestedSetting",
    "PluginRecord",
    "Registry",
    "check_capabilities",
    "default_registry",
    "depth_of",
    "encoder_mismatch",
    "hookimpl",
    "marker_of",
    "nested_settings",
    "unmet_needs",
]
