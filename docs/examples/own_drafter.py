"""Your own drafter: it changes the number of target forward passes, and not one token."""

from collections.abc import Sequence
from itertools import pairwise

from specdec_core import Decoder, DeterministicDrafter, PluginConfig, load_model


# --8<-- [start:drafter]
class Recent(DeterministicDrafter):
    """Proposes that a token is followed by what followed it last time."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        followed_by = dict(pairwise(tokens))
        draft = [tokens[-1]]
        while len(draft) <= budget and draft[-1] in followed_by:
            draft.append(followed_by[draft[-1]])
        return draft[1:]


# --8<-- [end:drafter]


target = load_model("builtin:target")
prompt = 'def read_lines(path):\n    """Return the lines of a file."""\n    with open(path) as'

baseline = Decoder(target, temperature=0).generate(prompt, max_new_tokens=64)
drafter = Recent(PluginConfig(), target.info())
drafted = Decoder(target, drafter, gamma=4, temperature=0).generate(prompt, max_new_tokens=64)

assert drafted.tokens == baseline.tokens
print(f"{baseline.metrics.target_calls} forward passes without it, {drafted.metrics.target_calls} with it")
