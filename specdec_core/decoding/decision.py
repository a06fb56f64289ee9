"""What a step decides from the target's logits: pure functions, which can be captured with its forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from specdec_core.decoding.drafting.validation import FINE, worst
from specdec_core.interface import AcceptanceResult, Dense, PointMass, Proposal
from specdec_core.interface.proposal import ProposalOrigin
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models.device import fetched, fetched_apart, joined
from specdec_core.sampling.logits import LogitsToProbs, argmax
from specdec_core.verification import SpeculativeSampling

T = TypeVar("T")


@dataclass(frozen=True)
class Verified:
    """The outcome of verification, fetched from the device; a list entry per row.

    Attributes:
        lengths: Number of draft tokens; 0 in all rows if the draft turned out to be wrong.
        draft: The draft tokens.
        accepted: n of Algorithm 1.
        token: The recovered or bonus token.
        deviation: What lenience costs at each draft token; empty where l = 1.
        parents: The parent of each draft token; None for lines.
        paths: The numbers of the accepted draft tokens; None for lines.
    """

    lengths: tuple[int, ...]
    draft: list[list[int]]
    accepted: list[int]
    token: list[int]
    deviation: list[list[float]]
    parents: list[list[int]] | None
    paths: list[list[int]] | None

    @property
    def last(self) -> list[int]:
        """The column of logits that the next token of each row was drawn from."""
        if self.paths is None:
            return self.accepted
        return [path[-1] + 1 if path else 0 for path in self.paths]

    def tokens(self, row: int) -> list[int]:
        """Return the accepted tokens of a row and the one that follows them."""
        draft = self.draft[row]
        accepted = draft[: self.accepted[row]] if self.paths is None else [draft[node] for node in self.paths[row]]
        return [*accepted, self.token[row]]


@dataclass(frozen=True)
class Best:
    """The target's best token at each position: all that verifying a greedy draft by Algorithm 1 needs.

    Python follows a draft along them in less time than launching operators takes.

    Attributes:
        tokens: `[B, K + 1]` int64.
        scores: `[B, K + 1]` float32, theirs.
    """

    tokens: Tensor
    scores: Tensor

    @classmethod
    def of(cls, scores: Tensor) -> Best:
        """Return the best of scores `[B, K + 1, V]`."""
        if scores.device.type == "cpu":
            tokens = argmax(scores)
            return cls(tokens, scores.gather(2, tokens[..., None])[..., 0])
        largest, tokens = scores.max(dim=2)
        return cls(tokens, largest)


Checked: TypeAlias = tuple[int, list[int], Verified]
"""The worst fault of a draft, whether each token was drawn from a distribution, and the rest."""


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
    *,
    algorithm_1: bool,
) -> tuple[AcceptanceResult | Best, Tensor | None]:
    """Turn logits into p, and apply the acceptance rule.

    Args:
        rule: The rule.
        to_probs: The target's sampling settings.
        proposal: The draft `[B, K]`, on the device of the logits.
        logits: `[B, K + 1, V]`.
        lenience: `[B, K]` float, or None for 1.
        uniforms: Returns the random numbers `[B, K + 1]` float64, where the target samples.
        prefixes: Of every verified position, row by row, where the settings need them.
        algorithm_1: Whether the rule is Algorithm 1.

    Returns:
        The answer of the rule, or what it follows from; p `[B, K + 1, V]` float32, None where it is one-hot
        (greedy).
    """
    flat = logits.flatten(0, 1)
    if to_probs.greedy:
        scores = to_probs.scores(flat, prefixes).view(logits.shape)
        best = algorithm_1 and lenience is None
        return Best.of(scores) if best else rule.greedy(proposal, scores, lenience), None
    p = to_probs(flat, prefixes).view(logits.shape)
    return rule.sample(proposal, p, lenience, uniforms()), p


def parts_to_fetch(
    proposal: Proposal, result: AcceptanceResult | Best, faults: Tensor | None
) -> list[Tensor | None]:
    """Return what Python has to know about a decision.

    Args:
        proposal: The draft.
        result: The answer of the rule, or what it follows from.
        faults: `[B, K]`, a code for each position; None if nothing can be wrong with the draft.

    Returns:
        Accepted, token, sound and draft; then faults, deviation, parents and path, each of which may be None. The
        deviation comes as the bits of float64, so that it fits into one tensor with token ids. Of `Best`, there is
        no path, and the first are None, its tokens, and the bits of its scores.
    """
    if isinstance(result, Best):
        bits = result.scores.view(torch.int32)
        return [None, result.tokens, bits, proposal.tokens, faults, None, proposal.parents, None]
    deviation = None if result.deviation is None else result.deviation.double().view(torch.int64)
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


def read(parts: Sequence[Any], lengths: tuple[int, ...]) -> Checked:
    """Return what was decided.

    Args:
        parts: Those of `parts_to_fetch`, fetched.
        lengths: Number of draft tokens of each row.
    """
    accepted, token, sound, draft, faults, costs, parents, paths = parts
    if accepted is None:
        accepted, token, sound, paths = _followed(token, sound, draft, parents, lengths)
    verified = Verified(
        lengths=lengths,
        draft=cut(draft, lengths),
        accepted=accepted,
        token=token,
        deviation=[] if costs is None else cut(np.array(costs, dtype=np.int64).view(np.float64).tolist(), lengths),
        parents=None if parents is None or paths is None else cut(parents, lengths),
        paths=None if parents is None or paths is None else cut(paths, accepted),
    )
    return FINE if faults is None else worst(faults, lengths), sound, verified


def _followed(
    best: Sequence[Sequence[int]],
    bits: Sequence[Sequence[int]],
    draft: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]] | None,
    lengths: Sequence[int],
) -> tuple[list[int], list[int], list[bool], list[list[int]]]:
    """Follow greedy drafts along the target's best tokens.

    Args:
        best: `[B][K + 1]`.
        bits: `[B][K + 1]`, the scores of these tokens: the bits of float32.
        draft: `[B][K]`.
        parents: `[B][K]` for trees.
        lengths: B.

    Returns:
        Accepted, token, sound, and the numbers of the accepted draft tokens, of each row.
    """
    accepted, token, sound, paths = [], [], [], []
    for row, length in enumerate(lengths):
        path, last = [], -1
        for node in range(length):
            parent = node - 1 if parents is None else parents[row][node]
            if parent == last and draft[row][node] == best[row][last + 1]:
                path.append(node)
                last = node
        accepted.append(len(path))
        token.append(best[row][last + 1])
        sound.append(bits[row][last + 1] & _EXPONENT != _EXPONENT)  # neither infinite nor NaN
        paths.append(path)
    return accepted, token, sound, paths


_EXPONENT = 0x7F800000
"""The bits of a float32 that are all 1 where it is infinite or NaN."""


def cut(rows: Sequence[list[T]], lengths: Sequence[int]) -> list[list[T]]:
    """Return the first `lengths[b]` entries of each row b."""
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


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
            *tensors: q `[B, W - 1, V]` if dense, then the faults `[B, W - 1]`, if any.

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
            algorithm_1=True,
        )
        parts = parts_to_fetch(proposal, result, tensors[-1] if self.faulty else None)
        whole = joined([part for part in parts if part is not None])
        return (whole,) if p is None else (whole, p)

    def fetched_parts(self, whole: Tensor) -> list[Any]:
        """Return the lists of `fetched_parts`, given what was joined."""
        if LogitsToProbs(self.settings).greedy and not self.lenient:
            width = (whole.shape[1] - 2) // (3 + self.faulty)
            best, bits, *lists = fetched_apart(whole, [width + 1, width + 1, *[width] * (1 + self.faulty)])
            return [None, best, bits, lists[0], lists[1] if self.faulty else None, None, None, None]
        width = (whole.shape[1] - 3) // (1 + self.faulty + self.lenient)
        lists = fetched_apart(whole, [None, None, None, *[width] * (1 + self.faulty + self.lenient)])
        faults = lists[4] if self.faulty else None
        deviation = lists[-1] if self.lenient else None
        return [*lists[:4], faults, deviation, None, None]
