"""Losslessness by enumeration, as in the conformance kit, and the settings that the tests share."""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import Observer
from specdec_core.decoding.result import BatchResult
from specdec_core.interface import SessionInfo, StepReport
from specdec_core.interface.outcome import Verification
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import LoadedModel, wrap_model
from specdec_core.testing.harness.enumeration import UNREMARKABLE, adjusted, continuations, p_of_sequences, sampled
from specdec_core.testing.harness.tiny_target import EOS as EOS
from specdec_core.testing.harness.tiny_target import PROMPT, VOCAB, uncached_logits
from tests.tiny import tiny_model

LENGTH = 3
SETTINGS = {
    "greedy": SamplingSettings(temperature=0),
    "temperature-1": SamplingSettings(temperature=1),
    "temperature-0.7-top-p-0.6": SamplingSettings(temperature=0.7, top_p=0.6),
    "top-k-3": SamplingSettings(top_k=3),
    "temperature-0.7": SamplingSettings(temperature=0.7),
}
p_value = p_of_sequences


def small_target(device: str, family: str = "gpt2") -> LoadedModel:
    """Return a random model small enough to enumerate, with an entropy of about 4 of 5 possible nats."""
    return wrap_model(tiny_model(family, VOCAB, sharpness=0.8).to(device))


def next_token(
    loaded: LoadedModel, prefix: Sequence[int], settings: SamplingSettings, source: Sequence[int] = PROMPT
) -> torch.Tensor:
    """Return the adjusted distribution after a prefix, from a fresh forward pass (an encoder reads `source`)."""
    return adjusted(uncached_logits(loaded, [prefix], source)[0, -1], settings, prefix)


def enumerate_continuations(
    loaded: LoadedModel, settings: SamplingSettings, prompt: Sequence[int] = PROMPT, length: int = 0
) -> dict[tuple[int, ...], float]:
    """Return every continuation of up to `length` tokens (default: `LENGTH`) with its exact probability."""
    return continuations(loaded, settings, prompt, length or LENGTH)


class _Sound(Observer):
    """Fails if a plugin failed, or if decoding took more target calls than tokens."""

    def __init__(self, max_calls: int) -> None:
        self.max_calls = max_calls

    def on_end(self, result: BatchResult) -> None:
        assert not result.failures, result.failures
        assert result.metrics.target_calls <= self.max_calls


class ExactDecisions(Observer):
    """Compares p, q and what each next token is drawn from with passes without a cache.

    Args:
        loaded: The target.
        settings: Its sampling settings, and the drafter's.
        table: `[V, V]`, the drafter's logits after each token; None where its q is a point mass.

    Attributes:
        error: The largest difference.
        drafted: Number of draft tokens that were compared.
    """

    probabilities = True

    def __init__(self, loaded: LoadedModel, settings: SamplingSettings, table: torch.Tensor | None = None) -> None:
        self.p = functools.cache(lambda text: next_token(loaded, text, settings))
        self.settings, self.table, self.error, self.drafted = settings, table, 0.0, 0

    def on_start(self, session: SessionInfo, prompts: Sequence[Sequence[int]]) -> None:
        self.texts = [tuple(prompt) for prompt in prompts]

    def on_step(self, report: StepReport) -> None:
        for row, new in enumerate(report.outcome.committed):
            if new:
                self._compare(self.texts[row], report.verification[row])
                self.texts[row] += new

    def _compare(self, text: tuple[int, ...], found: Verification) -> None:
        left = self.p(text)
        for test in found.tests:
            q = torch.eye(len(left))[test.token]
            q = q if self.table is None else adjusted(self.table[text[-1]], self.settings)
            self._note(test.p, left[test.token])
            self._note(test.q, q[test.token])
            self.drafted += 1
            text = (*text, test.token)
            left = self.p(text) if test.accepted else (left - q).clamp(min=0)
        for token, share in found.top:
            self._note(share, left[token] / left.sum())

    def _note(self, found: float, exact: torch.Tensor) -> None:
        self.error = max(self.error, abs(found - float(exact)))


def sample(
    decoder: Decoder, batch: int, count: int, prompt: Sequence[int] = PROMPT, length: int = 0, seed: int = 0
) -> Counter[tuple[int, ...]]:
    """Decode `count` continuations, `batch` at a time, each call with its own seed from `seed` on; count them."""
    length = length or LENGTH
    return sampled(decoder, batch, count, prompt, length, seed, [_Sound(length)])


def doubled_p_value(
    decoder: Decoder,
    expected: Mapping[tuple[int, ...], float],
    count: int,
    batch: int = 600,
    prompt: Sequence[int] = PROMPT,
    length: int = 0,
) -> float:
    """Return the p-value of up to `count` continuations, of as few as a quarter of them where those fit well.

    As in the conformance kit, a sample whose p-value is below `UNREMARKABLE` is doubled: what `count` would show
    is seen at nearly the cost of a quarter.
    """
    size = count // 4
    seen = sample(decoder, batch, size, prompt, length)
    while (p := p_value(seen, expected)) < UNREMARKABLE and size < count:
        seen += sample(decoder, batch, size, prompt, length, seed=-(-size // batch))
        size *= 2
    return p
