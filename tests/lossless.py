"""Losslessness by enumeration: the exact distribution of short continuations, and a chi-square against it.

The oracle is written apart from the code it judges: fresh forwards without a cache, and filters spelled out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from scipy.stats import chisquare

from specdec_core.decoding import Decoder
from specdec_core.models import LoadedModel, wrap_model
from specdec_core.settings import GenerationSettings, SamplingSettings
from tests.tiny import tiny_model

VOCAB, LENGTH, EOS = 6, 3, 1
PROMPT = (2, 3, 5, 2, 3)
SETTINGS = {
    "argmax": SamplingSettings(temperature=0),
    "temperature-1": SamplingSettings(temperature=1),
    "temperature-0.7-top-p-0.9": SamplingSettings(temperature=0.7, top_p=0.9),
    "top-k-3": SamplingSettings(top_k=3),
    "temperature-0.7": SamplingSettings(temperature=0.7),
}


def small_target(device: str, family: str = "gpt2") -> LoadedModel:
    """A random model small enough to enumerate; the entropy of its continuations is some 4 of 5 nats."""
    return wrap_model(tiny_model(family, VOCAB, sharpness=0.8).to(device))


def next_token(
    loaded: LoadedModel, prefix: Sequence[int], settings: SamplingSettings, source: Sequence[int] = PROMPT
) -> torch.Tensor:
    """The adjusted distribution after a prefix, from a fresh forward; with an encoder, one that reads a source."""
    ids = torch.tensor([list(prefix)], device=loaded.device)
    with torch.inference_mode():
        if loaded.encoder_decoder:
            given = torch.tensor([list(source)], device=loaded.device)
            logits = loaded.model(input_ids=given, decoder_input_ids=ids, use_cache=False).logits[0, -1]
        else:
            logits = loaded.model(input_ids=ids, use_cache=False).logits[0, -1]
    logits = logits.double().cpu().clone()
    if settings.repetition_penalty != 1:
        for token in set(prefix):
            factor = settings.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    if settings.argmax:
        return torch.nn.functional.one_hot(logits.argmax(), VOCAB).double()
    p = torch.softmax(logits / settings.temperature, dim=0)
    if settings.top_k is not None:
        p = torch.where(p >= p.sort(descending=True).values[settings.top_k - 1], p, 0)
        p = p / p.sum()
    if settings.top_p is not None:
        order = p.argsort(descending=True)
        before = p[order].cumsum(0) - p[order]
        p[order[before >= settings.top_p]] = 0
    return p / p.sum()


def enumerate_continuations(
    loaded: LoadedModel, settings: SamplingSettings, prompt: Sequence[int] = PROMPT, length: int = 0
) -> dict[tuple[int, ...], float]:
    """Every continuation of up to `length` tokens (by default LENGTH), with its exact probability."""
    begin = [loaded.start_id] if loaded.encoder_decoder else list(prompt)
    finished: dict[tuple[int, ...], float] = {}
    open_ones: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length or LENGTH):
        longer: dict[tuple[int, ...], float] = {}
        for tokens, weight in open_ones.items():
            p = next_token(loaded, [*begin, *tokens], settings, prompt)
            for token in range(VOCAB):
                if p[token] > 0:
                    where = finished if token == EOS else longer
                    where[(*tokens, token)] = weight * float(p[token])
        open_ones = longer
    return finished | open_ones


def sample(
    decoder: Decoder, batch: int, count: int, prompt: Sequence[int] = PROMPT, length: int = 0
) -> Counter[tuple[int, ...]]:
    """Decode `count` continuations, `batch` at a time, each call from a seed of its own."""
    seen: Counter[tuple[int, ...]] = Counter()
    most = length or LENGTH
    for seed in range(-(-count // batch)):
        result = decoder.generate([list(prompt)] * batch, GenerationSettings(max_new_tokens=most, seed=seed))
        assert not result.failures, result.failures
        assert result.metrics.target_calls <= most
        seen.update(row.tokens for row in result.rows)
    return seen


def p_value(seen: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square of what was seen; 0 where something impossible was seen.

    The first token, the first two and so on are tested each by themselves, and the smallest p-value counts (times
    their number): what is wrong with one position stands out where fewer outcomes share the sample.
    """
    if set(seen) - set(expected):
        return 0.0
    longest = max(map(len, expected))
    return min(1.0, longest * min(_chi_square(seen, expected, length) for length in range(1, longest + 1)))


def _chi_square(seen: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], length: int) -> float:
    """Return the p-value of the first `length` tokens. Rare outcomes share a bin."""
    wanted: dict[tuple[int, ...], float] = {}
    for key, p in expected.items():
        wanted[key[:length]] = wanted.get(key[:length], 0.0) + p * seen.total()
    counts: Counter[tuple[int, ...]] = Counter()
    for key, count in seen.items():
        counts[key[:length]] += count
    common = [key for key, number in wanted.items() if number >= 5]
    observed = [float(counts[key]) for key in common]
    numbers = [wanted[key] for key in common]
    if seen.total() - sum(numbers) > 1e-6:
        observed.append(seen.total() - sum(observed))
        numbers.append(seen.total() - sum(numbers))
    return 1.0 if len(numbers) == 1 else float(chisquare(observed, numbers, sum_check=False).pvalue)
