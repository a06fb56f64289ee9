"""Requests for a drafter inside another, whose draft is turned into something else before it is verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdec_core.decoding.drafting.request import DraftRecorder
from specdec_core.decoding.drafting.sampler import DraftSampler
from specdec_core.interface import DraftRequest
from specdec_core.interface.settings import SamplingSettings
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs


class _BestSampler(DraftSampler):
    """Takes the most probable token."""

    def draw(self, q: Tensor, uniforms: Callable[[], Tensor], position: int, left: Sequence[int]) -> Tensor:  # noqa: ARG002
        return q.argmax(-1)


def greedy_request(
    tokens: Sequence[Sequence[int]], budget: Sequence[int], vocab_size: int, device: torch.device | str
) -> DraftRequest:
    """Return a request that answers each draw with the most probable token.

    Args:
        tokens: The committed tokens of each sequence, in ids of any vocabulary.
        budget: The maximum number of tokens to draft for each sequence.
        vocab_size: The size of that vocabulary.
        device: Device of the proposal.
    """
    to_probs, generators = LogitsToProbs(SamplingSettings(temperature=0)), RowGenerators([0] * len(budget))
    sizes = len(budget), vocab_size, max(budget), device
    request = DraftRecorder(to_probs, generators, *sizes, sampler=_BestSampler())
    request.start(tokens, tuple(budget))
    return request
