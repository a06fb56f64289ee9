"""The types that cross the plugin border. Importing them imports no torch."""

from specdec_core.border.controller import (
    GammaController,
    GammaSession,
    LenienceController,
    LenienceSession,
    StepReport,
)
from specdec_core.border.drafter import (
    Drafter,
    DraftRequest,
    DraftSampler,
    DraftSession,
    Outcome,
    SessionInfo,
    TargetInfo,
)
from specdec_core.border.proposal import Dense, Distribution, PointMass, Proposal, Sparse
from specdec_core.border.simple import AutoregressiveDrafter, DeterministicDrafter
from specdec_core.border.spec import Capabilities, PluginConfig, PluginKind, PluginSpec

__all__ = [
    "AutoregressiveDrafter",
    "Capabilities",
    "Dense",
    "DeterministicDrafter",
    "Distribution",
    "DraftRequest",
    "DraftSampler",
    "DraftSession",
    "Drafter",
    "GammaController",
    "GammaSession",
    "LenienceController",
    "LenienceSession",
    "Outcome",
    "PluginConfig",
    "PluginKind",
    "PluginSpec",
    "PointMass",
    "Proposal",
    "SessionInfo",
    "Sparse",
    "StepReport",
    "TargetInfo",
]
