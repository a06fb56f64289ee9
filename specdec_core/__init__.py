"""Speculative decoding in which every guess is a plugin: the public face of the core.

Importing this imports no torch: what needs it (the decoder, models) is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from specdec_core.border import (
    BORDER_VERSION,
    AutoregressiveDrafter,
    Background,
    BatchInfo,
    Capabilities,
    Dense,
    DeterministicDrafter,
    Distribution,
    Drafter,
    DraftLoop,
    DraftRequest,
    DraftSession,
    GammaController,
    GammaSession,
    LenienceConfig,
    LenienceController,
    LenienceSession,
    LoopFactory,
    Nested,
    NestedDrafter,
    NestedGamma,
    Outcome,
    Overlay,
    OverlayRow,
    PluginConfig,
    PluginKind,
    PluginSpec,
    PointMass,
    Proposal,
    SessionInfo,
    Sparse,
    StepReport,
    TargetFeatures,
    TargetInfo,
    Trainer,
    TrainerConfig,
    TrainingObserver,
    TrainingReport,
)
from specdec_core.errors import (
    ConfigError,
    ModelError,
    NumericsError,
    PluginError,
    PromptError,
    SpecdecError,
)
from specdec_core.registry import Registry, default_registry, hookimpl
from specdec_core.settings import GenerationSettings, SamplingSettings

if TYPE_CHECKING:
    from specdec_core.acceptance import Verdict, accept
    from specdec_core.decoding import (
        BatchResult,
        Decoder,
        Generation,
        Metrics,
        Observer,
        PluginFailure,
        TraceObserver,
    )
    from specdec_core.models import LoadedModel, load_model, wrap_model

    __version__: str

_LAZY = {
    "BatchResult": "specdec_core.decoding",
    "Decoder": "specdec_core.decoding",
    "Generation": "specdec_core.decoding",
    "LoadedModel": "specdec_core.models",
    "Metrics": "specdec_core.decoding",
    "Observer": "specdec_core.decoding",
    "PluginFailure": "specdec_core.decoding",
    "TraceObserver": "specdec_core.decoding",
    "Verdict": "specdec_core.acceptance",
    "accept": "specdec_core.acceptance",
    "load_model": "specdec_core.models",
    "wrap_model": "specdec_core.models",
}
"""Public names whose modules import torch, and where they are."""

__all__ = [
    "BORDER_VERSION",
    "AutoregressiveDrafter",
    "Background",
    "BatchInfo",
    "BatchResult",
    "Capabilities",
    "ConfigError",
    "Decoder",
    "Dense",
    "DeterministicDrafter",
    "Distribution",
    "DraftLoop",
    "DraftRequest",
    "DraftSession",
    "Drafter",
    "GammaController",
    "GammaSession",
    "Generation",
    "GenerationSettings",
    "LenienceConfig",
    "LenienceController",
    "LenienceSession",
    "LoadedModel",
    "LoopFactory",
    "Metrics",
    "ModelError",
    "Nested",
    "NestedDrafter",
    "NestedGamma",
    "NumericsError",
    "Observer",
    "Outcome",
    "Overlay",
    "OverlayRow",
    "PluginConfig",
    "PluginError",
    "PluginFailure",
    "PluginKind",
    "PluginSpec",
    "PointMass",
    "PromptError",
    "Proposal",
    "Registry",
    "SamplingSettings",
    "SessionInfo",
    "Sparse",
    "SpecdecError",
    "StepReport",
    "TargetFeatures",
    "TargetInfo",
    "TraceObserver",
    "Trainer",
    "TrainerConfig",
    "TrainingObserver",
    "TrainingReport",
    "Verdict",
    "__version__",
    "accept",
    "default_registry",
    "hookimpl",
    "load_model",
    "wrap_model",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("specdec-core")
    except PackageNotFoundError:
        return "0+uninstalled"
