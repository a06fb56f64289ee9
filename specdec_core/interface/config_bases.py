"""The base of the settings of each kind of plugin."""

from __future__ import annotations

from specdec_core.interface.controllers import LenienceConfig
from specdec_core.interface.rules import RuleConfig
from specdec_core.interface.spec import DrafterConfig, PluginConfig, PluginKind
from specdec_core.interface.trainer import TrainerConfig

CONFIG_BASES: dict[PluginKind, type[PluginConfig]] = {
    "drafter": DrafterConfig,
    "gamma": PluginConfig,
    "lenience": LenienceConfig,
    "rule": RuleConfig,
    "trainer": TrainerConfig,
}
"""The base by kind. A plugin without settings may use it as it is, and then has no summary."""
