"""The plugin interface: everything a drafter, controller, acceptance rule or trainer implements or imports.

Importing this imports no torch.
"""

from specdec_core.interface.base_drafters import AutoregressiveDrafter, CompositeDrafter, DeterministicDrafter
from specdec_core.interface.controllers import (
    BatchInfo,
    GammaController,
    GammaSession,
    LenienceController,
    LenienceSession,
)
from specdec_core.interface.drafter import (
    LAST_HIDDEN,
    Drafter,
    DraftRequest,
    DraftSession,
    SessionInfo,
    TargetFeatures,
    TargetInfo,
)
from specdec_core.interface.errors import ConfigError, ModelError, PluginError, SpecdecError
from specdec_core.interface.outcome import Outcome, StepReport
from specdec_core.interface.proposal import Candidates, Dense, PointMass, Proposal, Sparse
from specdec_core.interface.rules import AcceptanceResult, AcceptanceRule
from specdec_core.interface.settings import ModelSettings
from specdec_core.interface.spec import (
    DrafterConfig,
    LenienceConfig,
    ModelsSpec,
    Nested,
    NestedDrafter,
    NestedGamma,
    PluginConfig,
    PluginSpec,
    RuleConfig,
    TrainerConfig,
)
from specdec_core.interface.trainer import Progress, Trainer, TrainingReport
from specdec_core.interface.tree import BestFirstTree, Branches, TokenTree

__all__ = [
    "LAST_HIDDEN",
    "AcceptanceResult",
    "AcceptanceRule",
    "AutoregressiveDrafter",
    "BatchInfo",
    "BestFirstTree",
    "Branches",
    "Candidates",
    "CompositeDrafter",
    "ConfigError",
    "Dense",
    "DeterministicDrafter",
    "DraftRequest",
    "DraftSession",
    "Drafter",
    "DrafterConfig",
    "GammaController",
    "GammaSession",
    "LenienceConfig",
    "LenienceController",
    "LenienceSession",
    "ModelError",
    "ModelSettings",
    "ModelsSpec",
    "Nested",
    "NestedDrafter",
    "NestedGamma",
    "Outcome",
    "PluginConfig",
    "PluginError",
    "PluginSpec",
    "PointMass",
    "Progress",
    "Proposal",
    "RuleConfig",
    "SessionInfo",
    "Sparse",
    "SpecdecError",
    "StepReport",
    "TargetFeatures",
    "TargetInfo",
    "TokenTree",
    "Trainer",
    "TrainerConfig",
    "TrainingReport",
]
