"""The exact distribution of short continuations, by enumeration: what lossless decoding must sample.

It is written apart from the code that it judges: fresh forwards without a cache, and filters spelled out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_core.decoding import Decoder, Observer
from specdec_core.models import LoadedModel
from specdec_core.settings import GenerationSettings, SamplingSettings
from specdec_core.testing.instruments.world import PROMPT, fresh_logits


def adjusted(logits: Tensor, settings: SamplingSettings, prefix: Sequence[int] = ()) -> Tensor:
    """Return the distribution that settings make of logits (section 2.2 of arXiv 2211.17192).

    Args:
        logits: `[V]` float.
        settings: Temperature, top-k, top-p and repetition penalty; 0 is argmax.
        prefix: The tokens before, for the penalty.

    Returns:
        `[V]` float64 on the CPU.
    """
    logits = logits.double().cpu().clone()
    if settings.repetition_penalty != 1:
        for token in set(prefix):
            factor = settings.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    if settings.argmax:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    p = torch.softmax(logits / settings.temperature, dim=0)
    if settings.top_k is not None:
        p = torch.where(p >= p.sort(descending=True).values[settings.top_k - 1], p, 0)
        p = p / p.sum()
    if settings.top_p is not None:
        order = p.argsort(descending=True)
        before = p[order].cumsum(0) - p[order]
        p[order[before >= settings.top_p]] = 0
    return p / p.sum()


def continuations(
    target: LoadedModel, settings: SamplingSettings, prompt: Sequence[int] = PROMPT, length: int = 3
) -> dict[tuple[int, ...], float]:
    """Return every continuation of up to `length` tokens, with its exact probability.

    Args:
        target: A model of few token ids.
        settings: How it is sampled.
        prompt: What they continue or, with an encoder, the source that they answer.
        length: Of those that do not end before.
    """
    begin = list(prompt) if target.start_id is None else [target.start_id]
    finished: dict[tuple[int, ...], float] = {}
    open_ones: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        logits = fresh_logits(target, [[*begin, *tokens] for tokens in open_ones], prompt)[:, -1]
        for (tokens, weight), scores in zip(open_ones.items(), logits, strict=True):
            for token, chance in enumerate(adjusted(scores, settings, [*begin, *tokens]).tolist()):
                if chance > 0:
                    where = finished if token in target.eos_ids else longer
                    where[(*tokens, token)] = weight * chance
        open_ones = longer
        if not open_ones:
            break
    return finished | open_ones


def sampled(
    decoder: Decoder,
    batch: int,
    count: int,
    prompt: Sequence[int] = PROMPT,
    length: int = 3,
    seed: int = 0,
    observers: Sequence[Observer] = (),
) -> Counter[tuple[int, ...]]:
    """Decode continuations, each call from a seed of its own; return how often each came.

    Args:
        decoder: Decodes them; should be strict, so that a plugin's failure is seen.
        batch: How many in a call.
        count: How many, rounded up to whole batches.
        prompt: What they continue.
        length: The most tokens of each.
        seed: The first of the seeds.
        observers: Told of every step.
    """
    seen: Counter[tuple[int, ...]] = Counter()
    for place in range(-(-count // batch)):
        settings = GenerationSettings(max_new_tokens=length, seed=seed + place)
        result = decoder.generate([list(prompt)] * batch, settings, observers)
        seen.update(row.tokens for row in result.rows)
    return seen
