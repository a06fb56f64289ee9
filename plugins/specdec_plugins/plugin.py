"""What this distribution announces to specdec. Importing this imports no torch."""

from __future__ import annotations

from specdec_core.border import PluginSpec
from specdec_core.registry import hookimpl
from specdec_plugins.configs import (
    AdditiveGammaConfig,
    ArgmaxLenienceConfig,
    BudgetedLenienceConfig,
    ConfidenceGammaConfig,
    ConstantLenienceConfig,
    CostAwareGammaConfig,
    FixedGammaConfig,
    OptimalGammaConfig,
    RunningAverageGammaConfig,
    ScheduleLenienceConfig,
)

SPECDEC_BORDER = "1.0"
"""The border that these were built for."""


@hookimpl
def specdec_gamma_controllers() -> list[PluginSpec]:
    """Announce the controllers of gamma."""
    return [
        PluginSpec(
            kind="gamma",
            name="fixed",
            factory="specdec_plugins.fixed_gamma:FixedGamma",
            config=FixedGammaConfig,
            summary="The same number of draft tokens in every step.",
            shorthand="gamma",
        ),
        PluginSpec(
            kind="gamma",
            name="optimal",
            factory="specdec_plugins.optimal_gamma:OptimalGamma",
            config=OptimalGammaConfig,
            summary="The best gamma by theory, from alpha and c, or from what was measured.",
        ),
        PluginSpec(
            kind="gamma",
            name="running-average",
            factory="specdec_plugins.running_average_gamma:RunningAverageGamma",
            config=RunningAverageGammaConfig,
            summary="Follows the acceptance met lately to the best gamma by theory.",
        ),
        PluginSpec(
            kind="gamma",
            name="additive",
            factory="specdec_plugins.additive_gamma:AdditiveGamma",
            config=AdditiveGammaConfig,
            summary="More after a draft accepted whole, less after one that was not.",
        ),
        PluginSpec(
            kind="gamma",
            name="confidence",
            factory="specdec_plugins.confidence_gamma:ConfidenceGamma",
            config=ConfidenceGammaConfig,
            summary="Ends a draft where the drafter is not sure, by a threshold that is given or learnt.",
        ),
        PluginSpec(
            kind="gamma",
            name="cost-aware",
            factory="specdec_plugins.cost_aware:CostAwareGamma",
            config=CostAwareGammaConfig,
            summary="Learns which gamma gives most tokens a second, zero included.",
        ),
    ]


@hookimpl
def specdec_lenience_controllers() -> list[PluginSpec]:
    """Announce the controllers of lenience."""
    return [
        PluginSpec(
            kind="lenience",
            name="constant",
            factory="specdec_plugins.constant_lenience:ConstantLenience",
            config=ConstantLenienceConfig,
            summary="The same lenience in every step; 1 is lossless.",
            shorthand="lenience",
        ),
        PluginSpec(
            kind="lenience",
            name="argmax",
            factory="specdec_plugins.argmax_lenience:ArgmaxLenience",
            config=ArgmaxLenienceConfig,
            summary="Lenience where decoding is argmax; strict where tokens are sampled.",
        ),
        PluginSpec(
            kind="lenience",
            name="schedule",
            factory="specdec_plugins.schedule_lenience:ScheduleLenience",
            config=ScheduleLenienceConfig,
            summary="Lenience that follows the place in the text.",
        ),
        PluginSpec(
            kind="lenience",
            name="budgeted",
            factory="specdec_plugins.budgeted_lenience:BudgetedLenience",
            config=BudgetedLenienceConfig,
            summary="Spends a stated deviation from the target in each sequence, where it buys most.",
        ),
    ]
