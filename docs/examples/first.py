"""A drafter of your own: it changes the number of target calls, and not one token."""

from collections.abc import Sequence
from itertools import pairwise

from specdec_core import (
    Decoder,
    DeterministicDrafter,
    GenerationSettings,
    PluginConfig,
    SamplingSettings,
    load_model,
)
from specdec_plugins.configs import FixedGammaConfig
from specdec_plugins.fixed_gamma import FixedGamma


class Recent(DeterministicDrafter):
    """Guesses that a token is followed by what followed it last time."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        followed_by = dict(pairwise(tokens))
        guesses = [tokens[-1]]
        while len(guesses) <= budget and guesses[-1] in followed_by:
            guesses.append(followed_by[guesses[-1]])
        return guesses[1:]


target = load_model("builtin:target")
argmax = SamplingSettings(temperature=0)
length = GenerationSettings(max_new_tokens=64)
prompts = ['def read_lines(path):\n    """Return the lines of a file."""\n    with open(path) as']

plain = Decoder(target, sampling=argmax)
drafter, gamma = Recent(PluginConfig(), target.info()), FixedGamma(FixedGammaConfig(gamma=4))
speculative = Decoder(target, drafter, gamma=gamma, sampling=argmax)

alone, drafted = plain.generate(prompts, length), speculative.generate(prompts, length)
assert drafted.rows[0].tokens == alone.rows[0].tokens
print(drafted.rows[0].text)
print(f"{alone.metrics.target_calls} target calls alone, {drafted.metrics.target_calls} with the drafter")
