"""Standardised sampling (section 2.2): from logits and settings to the distribution that is sampled.

Argmax, temperature, top-k, nucleus and the rest are all sampling from an adjusted distribution. The adjusting
is done by the library's own logits processors, on target and drafter alike.

References:
    Leviathan et al. 2023, section 2.2 (arXiv 2211.17192).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from specdec_core.settings import SamplingSettings

# Processors that look at the scores only. Whatever else is handed in is called with the exact prefix of each
# position, one position at a time.
_PREFIX_FREE = (
    hf.TemperatureLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopPLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
)


class Standardiser:
    """Turns logits into the adjusted distribution of some settings.

    Args:
        settings: What to adjust by.
        processors: Further Hugging Face logits processors, applied after the repetition penalty and before the
            temperature, where the library's `generate` applies them.

    Attributes:
        argmax: Whether every distribution is one-hot.
        temperature_only: Whether nothing is applied but the temperature, or argmax.
        needs_prefix: Whether the distribution depends on the tokens before, and not on the logits alone.
    """

    def __init__(self, settings: SamplingSettings, processors: Sequence[hf.LogitsProcessor] = ()) -> None:
        self.settings = settings
        self._chain = [*_penalties(settings), *processors, *_warpers(settings)]
        self.argmax = settings.argmax
        self.temperature_only = not processors and all(
            isinstance(one, hf.TemperatureLogitsWarper) for one in self._chain
        )
        self.needs_prefix = any(not isinstance(one, _PREFIX_FREE) for one in self._chain)

    def scores(self, logits: Tensor, prefixes: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Apply the processors, and not the softmax.

        Args:
            logits: `[N, V]`, any float type.
            prefixes: The N prefixes the logits belong to; needed when `needs_prefix`.

        Returns:
            Scores `[N, V]` float32, a new tensor where anything was changed.
        """
        scores = logits.float()
        for processor in self._chain:
            if isinstance(processor, _PREFIX_FREE):
                scores = processor(_NO_PREFIX, scores)
            else:
                scores = _with_prefixes(processor, scores, prefixes)
        return scores

    def __call__(
        self, logits: Tensor, prefixes: Sequence[Sequence[int]] | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return the adjusted distribution.

        Args:
            logits: `[N, V]`, any float type.
            prefixes: The N prefixes the logits belong to; needed when `needs_prefix`.
            out: Where to write the result, `[N, V]` float32.

        Returns:
            Probabilities `[N, V]` float32; one-hot for argmax (the first of equals). A row whose scores hold a
            NaN, or no finite score at all, comes out as NaN, so that it cannot pass for a distribution.
        """
        scores = self.scores(logits, prefixes)
        if not self.argmax:
            return torch.softmax(scores, dim=-1) if out is None else torch.softmax(scores, dim=-1, out=out)
        index = top(scores)[..., None]
        largest = scores.gather(-1, index)
        result = torch.zeros_like(scores) if out is None else out.zero_()
        # One where the maximum is a number; infinity and NaN turn to NaN.
        return result.scatter_(-1, index, largest - largest + 1)


def top(scores: Tensor) -> Tensor:
    """Return the index of the largest score of each row, the first of equals; a NaN counts as largest.

    Args:
        scores: `[..., V]` float32.

    Returns:
        `[...]` int64.
    """
    if scores.device.type == "cpu":
        # numpy searches with vector instructions, torch on a CPU does not: 3 against 19 us at V = 32,000.
        return torch.from_numpy(scores.detach().numpy().argmax(axis=-1))
    return scores.argmax(dim=-1)


_NO_PREFIX: Tensor = torch.empty(1, 0, dtype=torch.long)


def _penalties(settings: SamplingSettings) -> list[hf.LogitsProcessor]:
    if settings.repetition_penalty == 1:
        return []
    return [hf.RepetitionPenaltyLogitsProcessor(penalty=settings.repetition_penalty)]


def _warpers(settings: SamplingSettings) -> list[hf.LogitsProcessor]:
    """Return the library's warpers in the library's order; none of them changes an argmax."""
    chain: list[hf.LogitsProcessor] = []
    if settings.argmax:
        return chain
    if settings.temperature != 1:
        chain.append(hf.TemperatureLogitsWarper(settings.temperature))
    if settings.top_k is not None:
        chain.append(hf.TopKLogitsWarper(settings.top_k))
    if settings.top_p is not None and settings.top_p < 1:
        chain.append(hf.TopPLogitsWarper(settings.top_p))
    if settings.min_p:
        chain.append(hf.MinPLogitsWarper(settings.min_p))
    return chain


def _with_prefixes(
    processor: hf.LogitsProcessor, scores: Tensor, prefixes: Sequence[Sequence[int]] | None
) -> Tensor:
    if prefixes is None:
        raise ValueError(f"{type(processor).__name__} needs the prefix of each position")
    # One position at a time: prefixes differ in length, and padding would be taken for text.
    rows = [
        processor(torch.tensor([list(prefix)], device=scores.device), scores[n : n + 1])
        for n, prefix in enumerate(prefixes)
    ]
    return torch.cat(rows)
