"""What is installed, and how to get at it. Importing this imports no torch."""

from specdec_core.registry.capabilities import check_capabilities
from specdec_core.registry.hookspecs import HOOK_OF_KIND, PROJECT, WORD_FOR_KIND, HookSpecs, hookimpl
from specdec_core.registry.registry import PluginRecord, Registry, default_registry

__all__ = [
    "HOOK_OF_KIND",
    "PROJECT",
    "WORD_FOR_KIND",
    "HookSpecs",
    "PluginRecord",
    "Registry",
    "check_capabilities",
    "default_registry",
    "hookimpl",
]
