"""Speculative decoding with pluggable drafters.

The names below cover decoding with a drafter and writing a plugin; `specdec_core.interface` has the whole plugin
interface. Importing this takes no time: everything is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_imports
from specdec_core._version import installed_version

if TYPE_CHECKING:
    from specdec_core.decoding.counts import Metrics
    from specdec_core.decoding.custom_generate.function import generate_with
    from specdec_core.decoding.decoder import Decoder
    from specdec_core.decoding.observers import Observer, TraceObserver
    from specdec_core.decoding.result import BatchResult, Generation
    from specdec_core.interface import (
        AutoregressiveDrafter,
        BatchInfo,
        DeterministicDrafter,
        Drafter,
        DrafterConfig,
        DraftRequest,
        DraftSession,
        GammaController,
        GammaSession,
        LenienceController,
        LenienceSession,
        ModelsSpec,
        Outcome,
        PluginConfig,
        PluginSpec,
        Proposal,
        SessionInfo,
        SpecdecError,
        StepReport,
        TargetInfo,
    )
    from specdec_core.interface.constraint import Constraint
    from specdec_core.interface.errors import PluginWarning
    from specdec_core.interface.settings import GenerationSettings, SamplingSettings
    from specdec_core.models import LoadedModel, load_model, wrap_model
    from specdec_core.registry.hookspecs import hookimpl
    from specdec_core.registry.registry import default_registry
    from specdec_core.study import Comparison, compare

__all__ = [
    "AutoregressiveDrafter",
    "BatchInfo",
    "BatchResult",
    "Comparison",
    "Constraint",
    "Decoder",
    "DeterministicDrafter",
    "DraftRequest",
    "DraftSession",
    "Drafter",
    "DrafterConfig",
    "GammaController",
    "GammaSession",
    "Generation",
    "GenerationSettings",
    "LenienceController",
    "LenienceSession",
    "LoadedModel",
    "Metrics",
    "ModelsSpec",
    "Observer",
    "Outcome",
    "PluginConfig",
    "PluginSpec",
    "PluginWarning",
    "Proposal",
    "SamplingSettings",
    "SessionInfo",
    "SpecdecError",
    "StepReport",
    "TargetInfo",
    "TraceObserver",
    "__version__",
    "compare",
    "default_registry",
    "generate_with",
    "hookimpl",
    "load_model",
    "wrap_model",
]

__version__ = installed_version()

lazy_imports(globals())
