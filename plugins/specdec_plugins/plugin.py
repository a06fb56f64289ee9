"""Registers the controllers and acceptance rules with specdec. Importing this imports no torch."""

from __future__ import annotations

from specdec_core.interface import FixedGammaConfig, PluginSpec, TokenRuleConfig
from specdec_core.registry import hookimpl
from specdec_plugins.gamma.additive import AdditiveGammaConfig
from specdec_plugins.gamma.confidence import ConfidenceGammaConfig
from specdec_plugins.gamma.cost_aware import CostAwareGammaConfig
from specdec_plugins.gamma.optimal import OptimalGammaConfig
from specdec_plugins.gamma.optimal_tree import OptimalTreeGammaConfig
from specdec_plugins.gamma.running_average import RunningAverageGammaConfig
from specdec_plugins.gamma.tree import TreeGammaConfig
from specdec_plugins.lenience.budgeted import BudgetedLenienceConfig
from specdec_plugins.lenience.constant import ConstantLenienceConfig
from specdec_plugins.lenience.greedy import GreedyLenienceConfig
from specdec_plugins.lenience.schedule import ScheduleLenienceConfig
from specdec_plugins.rules.config import (
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
            kind="gamma",
            name="fixed",
            factory="specdec_core.interface:FixedGamma",
            config=FixedGammaConfig,
            summary="The same number of draft tokens in every step.",
            shorthand="gamma",
        ),
        PluginSpec(
            kind="gamma",
            name="optimal",
            factory="specdec_plugins.gamma.optimal:OptimalGamma",
            config=OptimalGammaConfig,
            summary="The best gamma by theory, computed from alpha and c or from a measurement.",
        ),
        PluginSpec(
            kind="gamma",
            name="running-average",
            factory="specdec_plugins.gamma.running_average:RunningAverageGamma",
            config=RunningAverageGammaConfig,
            summary="Follows the recent acceptance rate to the best gamma by theory.",
        ),
        PluginSpec(
            kind="gamma",
            name="additive",
            factory="specdec_plugins.gamma.additive:AdditiveGamma",
            config=AdditiveGammaConfig,
            summary="Raises gamma after a fully accepted draft, lowers it after a rejection.",
        ),
        PluginSpec(
            kind="gamma",
            name="confidence",
            factory="specdec_plugins.gamma.confidence:ConfidenceGamma",
            config=ConfidenceGammaConfig,
            summary="Stops a draft when the drafter is unsure, by a given or learned threshold.",
        ),
        PluginSpec(
            kind="gamma",
            name="cost-aware",
            factory="specdec_plugins.gamma.cost_aware:CostAwareGamma",
            config=CostAwareGammaConfig,
            summary="Learns the gamma with the most tokens per second, 0 included.",
        ),
        PluginSpec(
            kind="gamma",
            name="tree",
            factory="specdec_plugins.gamma.tree:TreeGamma",
            config=TreeGammaConfig,
            summary="The same token tree in every step, of given widths or by the drafter's probabilities.",
        ),
        PluginSpec(
            kind="gamma",
            name="optimal-tree",
            factory="specdec_plugins.gamma.optimal_tree:OptimalTreeGamma",
            config=OptimalTreeGammaConfig,
            summary="The best token tree by theory, computed from acceptance by rank and depth.",
        ),
    ]


@hookimpl
def specdec_lenience_controllers() -> list[PluginSpec]:
    """Register the lenience controllers."""
    return [
        PluginSpec(
            kind="lenience",
            name="constant",
            factory="specdec_plugins.lenience.constant:ConstantLenience",
            config=ConstantLenienceConfig,
            summary="The same lenience in every step; 1 is lossless.",
            shorthand="lenience",
        ),
        PluginSpec(
            kind="lenience",
            name="greedy",
            factory="specdec_plugins.lenience.greedy:GreedyLenience",
            config=GreedyLenienceConfig,
            summary="Lenient in greedy decoding, lossless when tokens are sampled.",
        ),
        PluginSpec(
            kind="lenience",
            name="schedule",
            factory="specdec_plugins.lenience.schedule:ScheduleLenience",
            config=ScheduleLenienceConfig,
            summary="Lenience as a function of the position in the text.",
        ),
        PluginSpec(
            kind="lenience",
            name="budgeted",
            factory="specdec_plugins.lenience.budgeted:BudgetedLenience",
            config=BudgetedLenienceConfig,
            summary="Spends a given deviation from the target per sequence, where it gains most.",
        ),
    ]


@hookimpl
def specdec_rules() -> list[PluginSpec]:
    """Register the acceptance rules."""
    return [
        PluginSpec(
            kind="rule",
            name="token",
            factory="specdec_core.verification.acceptance:SpeculativeSampling",
            config=TokenRuleConfig,
            summary="Token by token: Algorithm 1 of the paper, the default; lossless.",
        ),
        PluginSpec(
            kind="rule",
            name="block",
            factory="specdec_plugins.rules.block:BlockRule",
            config=BlockRuleConfig,
            summary="The draft as a whole: at least as many tokens as token; lossless.",
        ),
        PluginSpec(
            kind="rule",
            name="rejection",
            factory="specdec_plugins.rules.rejection:RejectionRule",
            config=RejectionRuleConfig,
            summary="Rejection sampling, to compare with; lossless.",
        ),
        PluginSpec(
            kind="rule",
            name="exact-match",
            factory="specdec_plugins.rules.exact_match:ExactMatchRule",
            config=ExactMatchRuleConfig,
            summary="Tokens that equal the argmax, for temperature 0 only; lossless.",
        ),
        PluginSpec(
            kind="rule",
            name="typical",
            factory="specdec_plugins.rules.typical:TypicalRule",
            config=TypicalRuleConfig,
            summary="Tokens that are typical of the target, as in Medusa; lossy where it samples.",
        ),
        PluginSpec(
            kind="rule",
            name="top-k",
            factory="specdec_plugins.rules.top_k:TopKRule",
            config=TopKRuleConfig,
            summary="Tokens among the k most probable ones of the target; lossy.",
        ),
    ]
