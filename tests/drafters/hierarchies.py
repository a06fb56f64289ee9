"""Hierarchies of drafters that a test made."""

from dataclasses import replace

from specdec_core.interface import PluginConfig
from specdec_core.models import LoadedModel
from specdec_drafters.hierarchical import HierarchicalDrafter
from specdec_drafters.settings import HierarchicalConfig
from tests.toys import Gamma


class Builder:
    """A `TargetInfo.build` that hands out what a test put there, and keeps what it was asked for."""

    def __init__(self, drafter, gamma):
        self.made = {"drafter": drafter, "gamma": gamma}
        self.targets = []

    def __call__(self, kind, config, target):
        self.targets.append(target)
        made = self.made[kind]
        return made(target) if callable(made) else made


def hierarchy(target: LoadedModel, model, drafter, gamma=None) -> HierarchicalDrafter:
    config = HierarchicalConfig(model=str(model), drafter=PluginConfig(), gamma=PluginConfig())
    info = replace(target.info(), build=Builder(drafter, gamma or Gamma(2)))
    return HierarchicalDrafter(config, info)
