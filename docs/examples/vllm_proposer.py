"""Drafters for vLLM's `method: custom_class`."""

from collections.abc import Sequence

from specdec_core import DeterministicDrafter, PluginConfig, TargetInfo
from specdec_core.serving.vllm import VllmProposer


class Repeat(DeterministicDrafter):
    """Proposes the last token again and again."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        return [tokens[-1]] * budget


class Repeater(VllmProposer):
    def make_drafter(self, target: TargetInfo) -> DeterministicDrafter:
        return Repeat(PluginConfig(), target)


class Proposer(VllmProposer):
    """Drafts in vLLM's process. The settings are those of a study and may be edited."""

    settings = "prompt-copy"
    folder = "/srv/project"  # base for relative paths in the settings
