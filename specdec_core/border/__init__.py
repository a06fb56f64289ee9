"""The types that cross the plugin border. Importing them imports no torch."""

from specdec_core.border.controller import (
    BatchInfo,
    GammaController,
    GammaSession,
    LenienceConfig,
    LenienceController,
    LenienceSession,
    StepReport,
)
from specdec_core.border.drafter import (
    Drafter,
    DraftLoop,
    DraftRequest,
    DraftSampler,
    DraftSession,
    LoopFactory,
    Outcome,
    SessionInfo,
    TargetFeatures,
    TargetInfo,
)
from specdec_core.border.overlay import Background, OverlayRow
from specdec_core.border.proposal import Dense, Distribution, Overlay, PointMass, Proposal, Sparse
from specdec_core.border.simple import AutoregressiveDrafter, DeterministicDrafter
from specdec_core.border.spec import (
    Capabilities,
    Nested,
    NestedDrafter,
    NestedGamma,
    PluginConfig,
    PluginKind,
    PluginSpec,
)
from specdec_core.border.trainer import Trainer, TrainerConfig, TrainingObserver, TrainingReport
from specdec_core.border.version import BORDER_VERSION

__all__ = [
    "BORDER_VERSION",
    "AutoregressiveDrafter",
    "Background",
    "BatchInfo",
    "Capabilities",
    "Dense",
    "DeterministicDrafter",
    "Distribution",
    "DraftLoop",
    "DraftRequest",
    "DraftSampler",
    "DraftSession",
    "Drafter",
    "GammaController",
    "GammaSession",
    "LenienceConfig",
    "LenienceController",
    "LenienceSession",
    "LoopFactory",
    "Nested",
    "NestedDrafter",
    "NestedGamma",
    "Outcome",
    "Overlay",
    "OverlayRow",
    "PluginConfig",
    "PluginKind",
    "PluginSpec",
    "PointMass",
    "Proposal",
    "SessionInfo",
    "Sparse",
    "StepReport",
    "TargetFeatures",
    "TargetInfo",
    "Trainer",
    "TrainerConfig",
    "TrainingObserver",
    "TrainingReport",
]
