"""What this distribution announces to specdec. Importing this imports no torch."""

from __future__ import annotations

from specdec_core.border import PluginSpec
from specdec_core.registry import hookimpl
from specdec_plugins.configs import ConstantLenienceConfig, FixedGammaConfig


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
        )
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
        )
    ]
