"""What a step decides from the target's logits: pure functions, which can be captured with its forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from specdec_core.interface import AcceptanceResult, Dense, PointMass, Proposal
from specdec_core.interface.proposal import ProposalOrigin
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models.device import fetched, fetched_apart, joined
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.verification import SpeculativeSampling

UNIT = 2.0**-40
"""Deviations are fetched from the device as multiples of this, in the same int64 tensor as token ids."""


class Rule(Protocol):
    """The part of an `AcceptanceRule` that is called."""

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:
        """See `AcceptanceRule.sample`."""

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:
        """See `AcceptanceRule.greedy`."""


def decide(
    rule: Rule,
    to_probs: LogitsToProbs,
    proposal: Proposal,
    logits: Tensor,
    lenience: Tensor | None,
    uniforms: Callable[[], Tensor],
    prefixes: Sequence[Sequence[int]] | None = None,
) -> tuple[AcceptanceResult, Tensor | None]:
    """Turn logits into p, and apply the acceptance rule.

    Args:
        rule: The rule.
        to_probs: The target's sampling settings.
        proposal: The draft `[B, K]`, on the device of the logits.
        logits: `[B, K + 1, V]`.
        lenience: `[B, K]` float, or None for 1.
        uniforms: Returns the random numbers `[B, K + 1]` float64, where the target samples.
        prefixes: Of every verified position, row by row, where the settings need them.

    Returns:
        The answer of the rule; p `[B, K + 1, V]` float32, None where it is one-hot (greedy).
    """
    flat = logits.flatten(0, 1)
    if to_probs.greedy:
        return rule.greedy(proposal, to_probs.scores(flat, prefixes).view(logits.shape), lenience), None
    p = to_probs(flat, prefixes).view(logits.shape)
    return rule.sample(proposal, p, lenience, uniforms()), p


def parts_to_fetch(proposal: Proposal, result: AcceptanceResult, faults: Tensor | None) -> list[Tensor | None]:
    """Return what Python has to know about a decision.

    Args:
        proposal: The draft.
        result: The answer of the rule.
        faults: `[B]` int64, what is wrong with the draft; None if nothing can be.

    Returns:
        Accepted, token, sound and draft; then faults, deviation, parents and path, each of which may be None.
    """
    deviation = None if result.deviation is None else (result.deviation.double() / UNIT).round().long()
    path = None if proposal.parents is None else result.path
    return [
        result.accepted,
        result.token,
        result.sound,
        proposal.tokens,
        faults,
        deviation,
        proposal.parents,
        path,
    ]


def fetched_parts(parts: Sequence[Tensor | None]) -> list[Any]:
    """Return the parts as lists, in the one transfer of a step."""
    lists = iter(fetched(*(part for part in parts if part is not None)))
    return [None if part is None else next(lists) for part in parts]


@dataclass(frozen=True)
class CapturedDecision:
    """`decide` by Algorithm 1 for a line, as the function of a `Decision`.

    Equal ones compute the same, so that graphs outlive the batch that they were captured for.

    Attributes:
        settings: The target's sampling settings, none of which reads the prefix.
        dense: Whether q is dense; else a point mass.
        faulty: Whether something may be wrong with the draft.
        lenient: Whether l < 1 somewhere.
    """

    settings: SamplingSettings
    dense: bool
    faulty: bool
    lenient: bool

    def __call__(
        self, logits: Tensor, draft: Tensor, lengths: Tensor, numbers: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Decide.

        Args:
            logits: `[B, W, V]`.
            draft: `[B, W - 1]` int64.
            lengths: `[B]` int64.
            numbers: `[C, B, W]` float64: where the target samples, the number that draws the next token, then
                r_1, r_2, ...; where lenient, l of each position.
            *tensors: q `[B, W - 1, V]` if dense, then the faults of each row, repeated, `[B, W - 1]`, if any.

        Returns:
            What `parts_to_fetch` returns, `joined`; p, where the target samples.
        """
        q = Dense(tensors[0]) if self.dense else PointMass()
        proposal = Proposal(draft, (draft.shape[1],) * len(draft), q)
        proposal = proposal.made_by_core(ProposalOrigin(lengths=lengths))
        to_probs = LogitsToProbs(self.settings)
        lenience = numbers[-1][:, : draft.shape[1]].float() if self.lenient else None
        result, p = decide(
            SpeculativeSampling(),
            to_probs,
            proposal,
            logits,
            lenience,
            lambda: torch.cat([numbers[0][:, 1:], numbers[0][:, :1]], dim=1),
        )
        parts = parts_to_fetch(proposal, result, tensors[-1][:, 0] if self.faulty else None)
        whole = joined([part for part in parts if part is not None])
        return (whole,) if p is None else (whole, p)

    def fetched_parts(self, whole: Tensor) -> list[Any]:
        """Return the lists of `fetched_parts`, given what was joined."""
        width = (whole.shape[1] - 3 - self.faulty) // (1 + self.lenient)
        lists = fetched_apart(whole, [None, None, None, width, *[None] * self.faulty, *[width] * self.lenient])
        faults = lists[4] if self.faulty else None
        deviation = lists[-1] if self.lenient else None
        return [*lists[:4], faults, deviation, None, None]
