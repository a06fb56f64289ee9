"""The registration of the controllers and acceptance rules with specdec. Importing this imports no torch."""

from __future__ import annotations

from specdec_core.interface import PluginSpec
from specdec_core.interface.controllers import FixedGammaConfig
from specdec_core.interface.rules import TokenRuleConfig
from specdec_core.registry import hookimpl
from specdec_plugins.gamma.additive import AdditiveGammaConfig
from specdec_plugins.gamma.confidence import ConfidenceGammaConfig
from specdec_plugins.gamma.cost_aware import CostAwareGammaConfig
from specdec_plugins.gamma.optimal import OptimalGammaConfig
from specdec_plugins.gamma.running_average import RunningAverageGammaConfig
from specdec_plugins.gamma.tree import TreeGammaConfig
from specdec_plugins.lenience.budgeted import BudgetedLenienceConfig
from specdec_plugins.lenience.constant import ConstantLenienceConfig
from specdec_plugins.lenience.greedy import GreedyLenienceConfig
from specdec_plugins.lenience.schedule import ScheduleLenienceConfig
from specdec_plugins.rules.settings import (
    BlockRuleConfig,
    ExactMatchRuleConfig,
    RejectionRuleConfig,
    TopKRuleConfig,
    TypicalRuleConfig,
)


@hookimpl
def specdec_gamma_controllers() -> list[PluginSpec]:
    """Register the gamma controllers."""
    return [
        PluginSpec(
            "gamma", "fixed", "specdec_core.interface.controllers:FixedGamma", FixedGammaConfig, shorthand="gamma"
        ),
        PluginSpec("gamma", "optimal", "specdec_plugins.gamma.optimal:OptimalGamma", OptimalGammaConfig),
        PluginSpec(
            "gamma",
            "running-average",
            "specdec_plugins.gamma.running_average:RunningAverageGamma",
            RunningAverageGammaConfig,
        ),
        PluginSpec("gamma", "additive", "specdec_plugins.gamma.additive:AdditiveGamma", AdditiveGammaConfig),
        PluginSpec(
            "gamma", "confidence", "specdec_plugins.gamma.confidence:ConfidenceGamma", ConfidenceGammaConfig
        ),
        PluginSpec("gamma", "cost-aware", "specdec_plugins.gamma.cost_aware:CostAwareGamma", CostAwareGammaConfig),
        PluginSpec("gamma", "tree", "specdec_plugins.gamma.tree:TreeGamma", TreeGammaConfig),
    ]


@hookimpl
def specdec_lenience_controllers() -> list[PluginSpec]:
    """Register the lenience controllers."""
    return [
        PluginSpec(
            "lenience",
            "constant",
            "specdec_plugins.lenience.constant:ConstantLenience",
            ConstantLenienceConfig,
            shorthand="lenience",
        ),
        PluginSpec("lenience", "greedy", "specdec_plugins.lenience.greedy:GreedyLenience", GreedyLenienceConfig),
        PluginSpec(
            "lenience", "schedule", "specdec_plugins.lenience.schedule:ScheduleLenience", ScheduleLenienceConfig
        ),
        PluginSpec(
            "lenience", "budgeted", "specdec_plugins.lenience.budgeted:BudgetedLenience", BudgetedLenienceConfig
        ),
    ]


@hookimpl
def specdec_rules() -> list[PluginSpec]:
    """Register the acceptance rules."""
    return [
        PluginSpec("rule", "token", "specdec_core.verification.acceptance:SpeculativeSampling", TokenRuleConfig),
        PluginSpec("rule", "block", "specdec_plugins.rules.block:BlockRule", BlockRuleConfig),
        PluginSpec("rule", "rejection", "specdec_plugins.rules.rejection:RejectionRule", RejectionRuleConfig),
        PluginSpec(
            "rule", "exact-match", "specdec_plugins.rules.exact_match:ExactMatchRule", ExactMatchRuleConfig
        ),
        PluginSpec("rule", "typical", "specdec_plugins.rules.typical:TypicalRule", TypicalRuleConfig),
        PluginSpec("rule", "top-k", "specdec_plugins.rules.top_k:TopKRule", TopKRuleConfig),
    ]
