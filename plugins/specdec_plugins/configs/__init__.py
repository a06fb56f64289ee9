"""What a study may say about each controller. Importing this imports no torch."""

from specdec_plugins.configs.cost_aware import CostAwareGammaConfig
from specdec_plugins.configs.gamma import (
    AdditiveGammaConfig,
    ConfidenceGammaConfig,
    FixedGammaConfig,
    OptimalGammaConfig,
    RunningAverageGammaConfig,
)
from specdec_plugins.configs.lenience import (
    ArgmaxLenienceConfig,
    BudgetedLenienceConfig,
    ConstantLenienceConfig,
    ScheduleLenienceConfig,
)

__all__ = [
    "AdditiveGammaConfig",
    "ArgmaxLenienceConfig",
    "BudgetedLenienceConfig",
    "ConfidenceGammaConfig",
    "ConstantLenienceConfig",
    "CostAwareGammaConfig",
    "FixedGammaConfig",
    "OptimalGammaConfig",
    "RunningAverageGammaConfig",
    "ScheduleLenienceConfig",
]
