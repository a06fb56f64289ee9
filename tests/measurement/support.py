"""A target small enough to enumerate, and the exact acceptance of a drafter beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from specdec_core.interface.settings import SamplingSettings
from specdec_core.measurement.measure import MeasureContext
from specdec_core.measurement.measurement_file import MeasureSettings
from specdec_core.registry import default_registry
from tests.lossless import PROMPT, VOCAB, next_token

ROWS = 30
"""Texts decoded together; each counts as one of a prompt of its own."""
LENGTH = 4
"""New tokens of a text; before the last there is no room for a draft."""
GAMMA = LENGTH - 1


def context(target, tokens=ROWS * GAMMA, registry=None, **settings) -> MeasureContext:
    """Thirty times the prompt whose continuations can be enumerated."""
    said = {"gamma": GAMMA, "rows": ROWS, "max_new_tokens": LENGTH, "ignore_eos": True, **settings}
    sampling = SamplingSettings()
    made = MeasureSettings(tokens=tokens, **said)
    return MeasureContext(target, [list(PROMPT)] * ROWS, sampling, made, registry or default_registry())


def exact(
    target, q_after: Callable[[Sequence[int]], Sequence[torch.Tensor]], temperature=1.0, lenience=1.0
) -> tuple[float, list[float]]:
    """Return alpha and acceptance by position over the target's texts, by enumeration.

    Args:
        target: The target.
        q_after: Returns the distributions that a token may be drafted from after a prefix, equally likely.
        temperature: 0 is argmax.
        lenience: l of appendix A.5.
    """
    settings = SamplingSettings(temperature=temperature)

    @functools.cache
    def kept(prefix):
        """min(p / l, q) of every token, the mean over the q; for argmax, q where the token is granted."""
        if settings.greedy:
            p = next_token(target, [*PROMPT, *prefix], SamplingSettings())
            granted = (p >= lenience * p.max() * (1 - 1e-9)).double()
            return sum(granted * q for q in q_after([*PROMPT, *prefix])) / len(q_after([*PROMPT, *prefix]))
        p = next_token(target, [*PROMPT, *prefix], settings)
        each = [torch.minimum(p / lenience, q) for q in q_after([*PROMPT, *prefix])]
        return sum(each) / len(each)

    reached = [0.0] * GAMMA
    accepted = [0.0] * GAMMA
    texts = {(): 1.0}
    for index in range(GAMMA):
        for text, weight in texts.items():
            drafts = {text: weight}
            for position in range(GAMMA - index):
                reached[position] += sum(drafts.values())
                drafts = {
                    (*draft, token): mass * float(kept(draft)[token])
                    for draft, mass in drafts.items()
                    for token in range(VOCAB)
                    if kept(draft)[token] > 0
                }
                accepted[position] += sum(drafts.values())
        texts = {
            (*text, token): weight * float(p[token])
            for text, weight in texts.items()
            for p in [next_token(target, [*PROMPT, *text], settings)]
            for token in range(VOCAB)
            if p[token] > 0
        }
    rates = [one / all_ for one, all_ in zip(accepted, reached, strict=True) if all_]
    return rates[0], rates
