"""The registration of the controllers and acceptance rules with specdec. Importing this imports no torch."""

from typing import Any

from specdec_core.interface import PluginConfig, PluginSpec
from specdec_core.interface.controllers import FixedGammaConfig
from specdec_core.interface.rules import TokenRuleConfig
from specdec_core.interface.spec import PluginKind
from specdec_core.registry import hookimpl
from specdec_plugins.gamma.adaptive import AdditiveGammaConfig, RunningAverageGammaConfig
from specdec_plugins.gamma.confidence import ConfidenceGammaConfig
from specdec_plugins.gamma.cost_aware import CostAwareGammaConfig
from specdec_plugins.gamma.optimal import OptimalGammaConfig
from specdec_plugins.gamma.tree import TreeGammaConfig
from specdec_plugins.lenience.budgeted import BudgetedLenienceConfig
from specdec_plugins.lenience.constant import ConstantLenienceConfig, GreedyLenienceConfig, ScheduleLenienceConfig
from specdec_plugins.rules.settings import (
    BlockRuleConfig,
    ExactMatchRuleConfig,
    RejectionRuleConfig,
    TopKRuleConfig,
    TypicalRuleConfig,
)


def _spec(kind: PluginKind, name: str, where: str, config: type[PluginConfig], **more: Any) -> PluginSpec:
    return PluginSpec(kind, name, f"specdec_plugins.{where}", config, **more)


@hookimpl
def specdec_gamma_controllers() -> list[PluginSpec]:
    """Register the gamma controllers."""
    return [
        PluginSpec(
            "gamma", "fixed", "specdec_core.interface.controllers:FixedGamma", FixedGammaConfig, shorthand="gamma"
        ),
        _spec("gamma", "optimal", "gamma.optimal:OptimalGamma", OptimalGammaConfig),
        _spec("gamma", "running-average", "gamma.adaptive:RunningAverageGamma", RunningAverageGammaConfig),
        _spec("gamma", "additive", "gamma.adaptive:AdditiveGamma", AdditiveGammaConfig),
        _spec("gamma", "confidence", "gamma.confidence:ConfidenceGamma", ConfidenceGammaConfig),
        _spec("gamma", "cost-aware", "gamma.cost_aware:CostAwareGamma", CostAwareGammaConfig),
        _spec("gamma", "tree", "gamma.tree:TreeGamma", TreeGammaConfig),
    ]


@hookimpl
def specdec_lenience_controllers() -> list[PluginSpec]:
    """Register the lenience controllers."""
    return [
        _spec(
            "lenience",
            "constant",
            "lenience.constant:ConstantLenience",
            ConstantLenienceConfig,
            shorthand="lenience",
        ),
        _spec("lenience", "greedy", "lenience.constant:GreedyLenience", GreedyLenienceConfig),
        _spec("lenience", "schedule", "lenience.constant:ScheduleLenience", ScheduleLenienceConfig),
        _spec("lenience", "budgeted", "lenience.budgeted:BudgetedLenience", BudgetedLenienceConfig),
    ]


@hookimpl
def specdec_rules() -> list[PluginSpec]:
    """Register the acceptance rules."""
    return [
        PluginSpec("rule", "token", "specdec_core.verification.acceptance:SpeculativeSampling", TokenRuleConfig),
        _spec("rule", "block", "rules.block:BlockRule", BlockRuleConfig),
        _spec("rule", "rejection", "rules.lossless:RejectionRule", RejectionRuleConfig),
        _spec("rule", "exact-match", "rules.lossless:ExactMatchRule", ExactMatchRuleConfig),
        _spec("rule", "typical", "rules.lossy:TypicalRule", TypicalRuleConfig),
        _spec("rule", "top-k", "rules.lossy:TopKRule", TopKRuleConfig),
    ]
