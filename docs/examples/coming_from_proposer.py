"""A proposer that returns token ids, as a drafter."""

from collections.abc import Sequence

from specdec_core import Decoder, DeterministicDrafter, GenerationSettings, PluginConfig, load_model
from specdec_plugins.configs import FixedGammaConfig
from specdec_plugins.fixed_gamma import FixedGamma


class Repeat(DeterministicDrafter):
    """Guesses that the last token comes again and again."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        return [tokens[-1]] * budget


target = load_model("builtin:target")
drafter, gamma = Repeat(PluginConfig(), target.info()), FixedGamma(FixedGammaConfig(gamma=3))
result = Decoder(target, drafter, gamma=gamma).generate(["import os\n"], GenerationSettings(max_new_tokens=32))
print(f"alpha {result.metrics.alpha}")
