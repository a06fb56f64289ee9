"""The exact distribution of short continuations, by enumeration, and chi-square tests of samples against it.

Independent of the code under test: forward passes without a cache, and the sampling filters written out.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from scipy.stats import chi2
from torch import Tensor

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import Observer
from specdec_core.decoding.result import BatchResult
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel
from specdec_core.testing.failures import CheckFailure, calling
from specdec_core.testing.harness.tiny_target import PROMPT, TinyTarget, uncached_logits

SAMPLED, GREEDY = SamplingSettings(), SamplingSettings(temperature=0)
LENGTH = 4
"""Length of the continuations that checks enumerate."""
SUSPICIOUS = 1e-6
"""A check fails below this p-value.

A kit runs about forty such tests, so a correct plugin fails one of them in fewer than 1 of 10^4 kits. All random
numbers have seeds: it fails always or never.
"""
UNREMARKABLE = 0.2
"""A sequential test accepts a sample at this p-value, and doubles a sample whose p-value is smaller.

A deviation that a sample four times as large would reveal is caught by the first look in about 9 of 10 cases.
"""

_Tokens: TypeAlias = tuple[int, ...]
_MIN_EXPECTED = 5.0
"""Outcomes with a smaller expected count share a bin."""


def chi_square(observed: Sequence[float], expected: Sequence[float]) -> tuple[float, int]:
    """Return Pearson's statistic and its degrees of freedom; rare outcomes share a bin.

    The statistic is infinite where an impossible outcome was observed.

    Args:
        observed: Count of each outcome.
        expected: Expected count of each outcome; has the same sum.
    """
    if any(count and not mean for count, mean in zip(observed, expected, strict=True)):
        return math.inf, 1
    pairs = [(count, mean) for count, mean in zip(observed, expected, strict=True) if mean >= _MIN_EXPECTED]
    rest = sum(observed) - sum(count for count, _ in pairs), sum(expected) - sum(mean for _, mean in pairs)
    if rest[1] >= _MIN_EXPECTED or (rest[1] > 1e-9 and not pairs):
        pairs.append(rest)
    elif pairs and (abs(rest[0]) > 1e-9 or rest[1] > 1e-9):
        pairs[-1] = pairs[-1][0] + rest[0], pairs[-1][1] + rest[1]
    return sum((count - mean) ** 2 / mean for count, mean in pairs), max(len(pairs) - 1, 0)


def p_of_groups(groups: Iterable[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Return the joint p-value of independent groups, each a pair of observed and expected counts."""
    statistic, freedom = 0.0, 0
    for observed, expected in groups:
        own, degrees = chi_square(observed, expected)
        statistic, freedom = statistic + own, freedom + degrees
    return float(chi2.sf(statistic, freedom)) if freedom else 1.0


def p_of_sequences(seen: Mapping[_Tokens, int], expected: Mapping[_Tokens, float]) -> float:
    """Return the p-value of a sample of sequences; 0 if it has a sequence of probability 0.

    Tests the first token, the first two, and so on. The smallest p-value counts, multiplied by the number of tests
    (Bonferroni): an error at one position stands out where fewer outcomes share the sample.

    Args:
        seen: Count of each sequence.
        expected: Probability of each sequence.
    """
    if set(seen) - set(expected):
        return 0.0
    by_length = [list(counts.values()) for counts in _by_prefix(seen, expected)]
    p_values = [p_of_groups([([count for count, _ in one], [mean for _, mean in one])]) for one in by_length]
    return min(1.0, len(p_values) * min(p_values))


def _by_prefix(
    seen: Mapping[_Tokens, int], expected: Mapping[_Tokens, float]
) -> list[dict[_Tokens, tuple[int, float]]]:
    """Return the count of each first token and its expected count, then those of the first two, and so on."""
    total, found = sum(seen.values()), []
    for length in range(1, max(map(len, [*expected, *seen])) + 1):
        counts: dict[_Tokens, tuple[int, float]] = {}
        for key in sorted({*seen, *expected}):
            count, mean = counts.get(key[:length], (0, 0.0))
            counts[key[:length]] = count + seen.get(key, 0), mean + total * expected.get(key, 0.0)
        found.append(counts)
    return found


def farthest(seen: Mapping[_Tokens, int], expected: Mapping[_Tokens, float]) -> tuple[_Tokens, int, float]:
    """Return the prefix whose count deviates most, with its count and its expected count."""
    worst = -1.0
    found: tuple[_Tokens, int, float] = (), 0, 0.0
    for counts in _by_prefix(seen, expected):
        for key, (count, mean) in sorted(counts.items()):
            # A few occurrences of something rare say little; a single one of something impossible says all.
            distance = math.inf if count and not mean else (count - mean) ** 2 / max(mean, _MIN_EXPECTED)
            if distance > worst:
                worst, found = distance, (key, count, mean)
    return found


def adjusted(logits: Tensor, settings: SamplingSettings, prefix: Sequence[int] = (), begin: int = 0) -> Tensor:
    """Return the distribution after sampling settings (section 2.2 of arXiv 2211.17192).

    Args:
        logits: `[V]` float.
        settings: Temperature, top-k, top-p, penalties, biases and bad words as ids. Temperature 0 is greedy.
        prefix: The tokens before, for the penalties and bad words.
        begin: Number of them before the new text.

    Returns:
        `[V]` float64 on the CPU.
    """
    logits = logits.double().cpu().clone()
    for token, bias in (settings.logit_bias or {}).items():
        logits[token] += bias
    if settings.repetition_penalty != 1:
        for token in set(prefix):
            factor = settings.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, count in Counter(prefix[begin:]).items():
        logits[token] -= settings.presence_penalty + settings.frequency_penalty * count
    for first, last in ((word[:-1], word[-1]) for word in settings.bad_words if not isinstance(word, str)):
        if first == tuple(prefix[len(prefix) - len(first) :]):
            logits[last] = -torch.inf
    if settings.greedy:
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
    model: LoadedModel, settings: SamplingSettings, prompt: Sequence[int] | Tensor = PROMPT, length: int = 3
) -> dict[tuple[int, ...], float]:
    """Return every continuation of up to `length` tokens with its exact probability.

    Args:
        model: A model with few token ids.
        settings: Its sampling settings.
        prompt: The prompt, or the source with an encoder; see `uncached_logits`.
        length: Maximum length; a continuation that reaches an end of sequence is shorter.
    """
    begin = list(prompt) if model.start_id is None else [model.start_id]
    finished: dict[tuple[int, ...], float] = {}
    unfinished: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        logits = uncached_logits(model, [[*begin, *tokens] for tokens in unfinished], prompt)[:, -1]
        for (tokens, weight), scores in zip(unfinished.items(), logits, strict=True):
            for token, probability in enumerate(
                adjusted(scores, settings, [*begin, *tokens], len(begin)).tolist()
            ):
                if probability > 0:
                    group = finished if token in model.eos_ids else longer
                    group[(*tokens, token)] = weight * probability
        unfinished = longer
        if not unfinished:
            break
    return finished | unfinished


@functools.cache
def exact(target: TinyTarget, sampling: SamplingSettings) -> Mapping[tuple[int, ...], float]:
    """Return the probability of every continuation of `PROMPT` of up to `LENGTH` tokens."""
    return continuations(target.loaded, sampling, length=LENGTH)


def sampled(
    decoder: Decoder,
    batch: int,
    count: int,
    prompt: Sequence[int] = PROMPT,
    length: int = 3,
    seed: int = 0,
    observers: Sequence[Observer] = (),
) -> Counter[tuple[int, ...]]:
    """Decode continuations of one prompt and count them. Each call of `generate` has its own seed.

    Args:
        decoder: The decoder. Use a strict one, so that plugin failures raise.
        batch: Sequences per call.
        count: Number of continuations, rounded up to whole batches.
        prompt: The prompt.
        length: Maximum length.
        seed: The first seed.
        observers: Observers of every step.
    """
    seen: Counter[tuple[int, ...]] = Counter()
    for number in range(-(-count // batch)):
        settings = GenerationSettings(max_new_tokens=length, seed=seed + number)
        result = decoder.generate([list(prompt)] * batch, settings, observers)
        seen.update(row.tokens for row in result.sequences)
    return seen


def require_distribution(
    decoder: Decoder,
    expected: Mapping[tuple[int, ...], float],
    where: str,
    *,
    batch: int,
    min_count: int,
    max_count: int,
    seed: int = 0,
    hint: str | None = None,
) -> None:
    """Require that decoded continuations follow an exact distribution.

    The test is sequential: a sample that fits well ends it; otherwise the sample is doubled until it either fits,
    or its p-value is below `SUSPICIOUS`, or `max_count` are drawn. A correct plugin costs little more than
    `min_count` continuations, while a wrong one is tested with up to `max_count`.

    Args:
        decoder: A strict decoder.
        expected: The probability of each continuation.
        where: What is decoded, for messages.
        batch: Sequences per call.
        min_count: Size of the first sample.
        max_count: Size at which the test ends.
        seed: The first seed.
        hint: What usually fixes it.

    Raises:
        CheckFailure: Decoding failed, or the sample does not fit the distribution.
    """
    length = max(map(len, expected))
    seen: Counter[tuple[int, ...]] = Counter()
    size = min_count
    while True:
        with calling(f"decoded {size} continuations of up to {length} tokens {where}"):
            calls = -(-seen.total() // batch)
            seen += sampled(decoder, batch, size - seen.total(), length=length, seed=seed + calls)
        p = p_of_sequences(seen, expected)
        if p < SUSPICIOUS:
            break
        if p >= UNREMARKABLE or size >= max_count:
            return
        size *= 2
    prefix, count, mean = farthest(seen, expected)
    raise CheckFailure(
        f"decoded {seen.total()} continuations of up to {length} tokens {where}",
        f"{count} continuations that begin with {list(prefix)}; chi-square p-value {p:.1e}",
        f"about {mean:.0f} such continuations; a p-value of at least {SUSPICIOUS:g}",
        hint,
    )


def require_baseline(
    target: TinyTarget, decoder: Decoder, prompts: tuple[tuple[int, ...], ...], *, ignore_eos: bool = False
) -> None:
    """Fail unless a greedy decoder gives the tokens of autoregressive decoding, in no more target calls.

    Args:
        target: The target.
        decoder: A strict decoder with this target.
        prompts: What is decoded together.
        ignore_eos: Whether texts go on after an end of sequence.
    """
    did = f"decoded {len(prompts)} sequence(s) greedily on {target}"
    with calling(did):
        got = _short_texts(decoder, prompts, ignore_eos)
    baseline = _baseline(target, prompts, ignore_eos)
    for own, other in zip(got, baseline, strict=True):
        if own.tokens != other.tokens:
            after, tokens = f"{did}, this one from {list(own.prompt)}", f"the tokens {list(own.tokens)}"
            raise CheckFailure(after, tokens, f"the baseline's tokens {list(other.tokens)}")
    calls, limit = got.metrics.target_calls, baseline.metrics.target_calls
    if calls > limit:
        raise CheckFailure(did, f"{calls} target calls", f"at most {limit}, as many as the baseline")


def _short_texts(decoder: Decoder, prompts: Sequence[Sequence[int]], ignore_eos: bool) -> BatchResult:
    return decoder.generate(
        [list(prompt) for prompt in prompts], GenerationSettings(max_new_tokens=24, ignore_eos=ignore_eos)
    )


@functools.cache
def _baseline(target: TinyTarget, prompts: tuple[tuple[int, ...], ...], ignore_eos: bool) -> BatchResult:
    return _short_texts(Decoder(target.loaded, sampling=GREEDY), prompts, ignore_eos)
