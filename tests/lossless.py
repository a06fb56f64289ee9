"""Losslessness by enumeration, as the conformance kit tests it, with the settings that the tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from specdec_core.decoding import BatchResult, Decoder, Observer
from specdec_core.models import LoadedModel, wrap_model
from specdec_core.settings import SamplingSettings
from specdec_core.testing.instruments.enumeration import adjusted, continuations, sampled
from specdec_core.testing.instruments.statistics import p_of_sequences
from specdec_core.testing.instruments.world import EOS, PROMPT, VOCAB, fresh_logits
from tests.tiny import tiny_model

__all__ = [
    "EOS",
    "LENGTH",
    "PROMPT",
    "SETTINGS",
    "VOCAB",
    "enumerate_continuations",
    "next_token",
    "p_value",
    "sample",
    "small_target",
]

LENGTH = 3
SETTINGS = {
    "argmax": SamplingSettings(temperature=0),
    "temperature-1": SamplingSettings(temperature=1),
    "temperature-0.7-top-p-0.9": SamplingSettings(temperature=0.7, top_p=0.9),
    "top-k-3": SamplingSettings(top_k=3),
    "temperature-0.7": SamplingSettings(temperature=0.7),
}
p_value = p_of_sequences


def small_target(device: str, family: str = "gpt2") -> LoadedModel:
    """A random model small enough to enumerate; the entropy of its continuations is some 4 of 5 nats."""
    return wrap_model(tiny_model(family, VOCAB, sharpness=0.8).to(device))


def next_token(
    loaded: LoadedModel, prefix: Sequence[int], settings: SamplingSettings, source: Sequence[int] = PROMPT
) -> torch.Tensor:
    """The adjusted distribution after a prefix, from a fresh forward; with an encoder, one that reads a source."""
    return adjusted(fresh_logits(loaded, [prefix], source)[0, -1], settings, prefix)


def enumerate_continuations(
    loaded: LoadedModel, settings: SamplingSettings, prompt: Sequence[int] = PROMPT, length: int = 0
) -> dict[tuple[int, ...], float]:
    """Every continuation of up to `length` tokens (by default LENGTH), with its exact probability."""
    return continuations(loaded, settings, prompt, length or LENGTH)


class _Sound(Observer):
    """Fails where a plugin failed, or where decoding took more calls than tokens."""

    def __init__(self, most: int) -> None:
        self.most = most

    def on_end(self, result: BatchResult) -> None:
        assert not result.failures, result.failures
        assert result.metrics.target_calls <= self.most


def sample(
    decoder: Decoder, batch: int, count: int, prompt: Sequence[int] = PROMPT, length: int = 0
) -> Counter[tuple[int, ...]]:
    """Decode `count` continuations, `batch` at a time, each call from a seed of its own."""
    most = length or LENGTH
    return sampled(decoder, batch, count, prompt, most, observers=[_Sound(most)])
