"""A proposer that returns token ids, as a drafter."""

from collections.abc import Sequence

from specdec_core import Decoder, DeterministicDrafter, PluginConfig, load_model


class Repeat(DeterministicDrafter):
    """Proposes the last token again and again."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        return [tokens[-1]] * budget


target = load_model("builtin:target")
drafter = Repeat(PluginConfig(), target.info())
result = Decoder(target, drafter, gamma=3).generate("import os\n", max_new_tokens=32)
print(f"acceptance rate {result.metrics.alpha:.2f}")
