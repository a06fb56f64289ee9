"""Captured functions that draft a whole line, or verify a draft, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specdec_core.decoding.answer import Answered, decide, read, tensors_of
from specdec_core.interface import AcceptanceRule, Dense, PointMass, Proposal
from specdec_core.interface.proposal import ProposalOrigin
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import ModelSession
from specdec_core.models.device import fetched_apart, joined
from specdec_core.models.fast.static_step import Decision
from specdec_core.sampling.generators import draw
from specdec_core.sampling.logits import PREFIX_READERS, LogitsToProbs, argmax
from specdec_core.verification import SpeculativeSampling
from specdec_core.verification.distributions import possible


@dataclass(frozen=True)
class CapturedLine:
    """The `LineSampler` of sampling settings. Equal ones compute the same, so that graphs outlive a batch.

    Attributes:
        settings: Those of drafts, none of which reads the prefix.
    """

    settings: SamplingSettings

    def draw(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
        """Draw a token of each row.

        Args:
            logits: `[B, V]`.
            uniforms: `[B]` float64; not read where drafts are greedy.

        Returns:
            The tokens `[B]`; where drafts are sampled, also q `[B, V]` float32.
        """
        if self._to_probs.greedy:
            return (argmax(self._to_probs.scores(logits)),)
        q = self._to_probs(logits)
        return draw(q, uniforms), q

    @cached_property
    def _to_probs(self) -> LogitsToProbs:
        return LogitsToProbs(self.settings)

    def finish(self, drawn: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return the tokens `[B, G]` int64.

        Args:
            drawn: What was drawn at each of G positions.

        Returns:
            The tokens; where drafts are sampled, also q `[B, G, V]`, and what `possible` says, unless it is None.
        """
        tokens, *q = (torch.stack(part, dim=1) for part in zip(*drawn, strict=True))
        if not q:
            return (tokens,)
        faults = possible(Proposal(tokens, (len(drawn),) * len(tokens), Dense(q[0])))
        return (tokens, q[0]) if faults is None else (tokens, q[0], faults)


@dataclass(frozen=True)
class CapturedDecision:
    """Algorithm 1 for a line, as the function of a `Decision`.

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
            What `tensors_of` returns, `joined`; p, where the target samples.
        """
        q = Dense(tensors[0]) if self.dense else PointMass()
        proposal = Proposal(draft, (draft.shape[1],) * len(draft), q)
        proposal = proposal.made_by_core(ProposalOrigin(lengths=lengths))
        to_probs = LogitsToProbs(self.settings)
        lenience = numbers[-1][:, : draft.shape[1]].float() if self.lenient else None
        values = to_probs.scores if to_probs.greedy else to_probs
        p = values(logits.flatten(0, 1)).view(logits.shape)
        uniforms = None if to_probs.greedy else torch.cat([numbers[0][:, 1:], numbers[0][:, :1]], dim=1)
        result = decide(SpeculativeSampling(), proposal, p, lenience, uniforms)
        parts = tensors_of(proposal, result, tensors[-1] if self.faulty else None)
        whole = joined([parts[name] for name in self._names])
        return (whole,) if to_probs.greedy else (whole, p)

    @property
    def _names(self) -> list[str]:
        """The names of `tensors_of`, in the order in which they are joined."""
        best = self.settings.greedy and not self.lenient
        names = ["best", "scores", "draft"] if best else ["accepted", "token", "sound", "draft"]
        return names + ["faults"] * self.faulty + ["deviation"] * self.lenient

    def fetched(self, whole: Tensor) -> dict[str, Any]:
        """Return the lists of what was joined, by name."""
        names = self._names
        extra = {"best": 1, "scores": 1}  # [B, K + 1]
        wide = [name for name in names if name not in ("accepted", "token", "sound")]
        width = whole.shape[1] - (len(names) - len(wide)) - sum(extra.get(name, 0) for name in wide)
        each = [width // len(wide) + extra.get(name, 0) if name in wide else None for name in names]
        return dict(zip(names, fetched_apart(whole, each), strict=True))


def replay(
    session: ModelSession,
    to_probs: LogitsToProbs,
    rule: AcceptanceRule | None,
    proposal: Proposal,
    faults: Tensor | None,
    uncached: Sequence[Sequence[int]],
    lenience: list[list[float]] | None,
    numbers: list[list[float]],
    note: Callable[[str], None],
) -> tuple[Tensor, Tensor | None, Answered] | None:
    """Run the target and apply Algorithm 1 in one captured function.

    Args:
        session: The target's forward pass, which captures decisions.
        to_probs: The target's sampling settings.
        rule: The acceptance rule, unless it is Algorithm 1.
        proposal: The draft.
        faults: `[B, K]`, a code for each position; None if nothing can be wrong with it.
        uncached: For each row, its committed tokens that the target has not read.
        lenience: l of each position, `[B][K]`; None for 1.
        numbers: `[B][K + 1]`, the random numbers; empty for greedy decoding.
        note: Called with the reason why it has to be done eagerly.

    Returns:
        Logits `[B, K + 1, V]`; p of the same shape, None where it is one-hot; the answer. None where it has to be
        done eagerly.
    """
    reason = ""
    if not to_probs.settings_only:
        reason = PREFIX_READERS
    elif rule is not None:
        reason = f"{type(rule).__name__} is not the rule of Algorithm 1"
    elif proposal.parents is not None:
        reason = "token trees have many shapes"
    elif not isinstance(proposal.q, PointMass | Dense):
        reason = "the drafter gives q on a few tokens, whose number differs"
    if reason:
        note(f"compile: {reason}, so that drafts are verified after a captured pass, not in it.")
        return None
    width = proposal.tokens.shape[1]
    tensors = [proposal.q.probabilities] if isinstance(proposal.q, Dense) else []
    function = CapturedDecision(to_probs.settings, bool(tensors), faults is not None, lenience is not None)
    if faults is not None:
        tensors.append(faults)
    known = [[[row[-1], *row[:-1]] for row in numbers]] if numbers else []
    known += [] if lenience is None else [lenience]
    wanted = Decision(function, known, tensors, proposal.origin.captured)
    found = session.decide(uncached, proposal.tokens, proposal.lengths, wanted)
    if found is None:
        return None
    logits, (whole, *p) = found
    return logits, p[0][:, : width + 1] if p else None, read(function.fetched(whole), proposal.lengths)
