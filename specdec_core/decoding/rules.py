"""The rule that judges a draft: a function of what is known in a step, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import Tensor

from specdec_core.acceptance import Verdict, accept, accept_argmax
from specdec_core.border import Proposal
from specdec_core.lenience import granted_by_argmax_lenience, variation, variation_of_argmax


@dataclass(frozen=True)
class Case:
    """All that a rule may look at.

    Attributes:
        proposal: The draft, tokens `[B, K]` with their q.
        p: `[B, K + 1, V]` float32, the target's adjusted distributions; None where they are one-hot (argmax).
        scores: `[B, K + 1, V]` float32, the target's scores after its processors, where p is None.
        lenience: `[B, K]` float, l of each position; None where all are 1.
        uniforms: `[B, K + 1]` float64: r_1 ... r_K, then the number that draws the next token; None for argmax.
    """

    proposal: Proposal
    p: Tensor | None
    scores: Tensor | None
    lenience: Tensor | None
    uniforms: Tensor | None


Rule: TypeAlias = Callable[[Case], Verdict]
"""Says of a case which draft tokens are kept and which token follows."""


def speculative_sampling(case: Case) -> Verdict:
    """Judge by Algorithm 1, with lenience as in appendix A.5."""
    if case.scores is not None:
        return _judge_argmax(case.proposal, case.scores, case.lenience)
    assert case.p is not None
    assert case.uniforms is not None
    if case.lenience is None:
        return accept(case.proposal, case.p, case.p.new_ones(len(case.p)), case.uniforms)
    verdict = accept(case.proposal, case.p, case.lenience, case.uniforms)
    return replace(verdict, deviation=variation(case.proposal, case.p, case.lenience))


def _judge_argmax(proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> Verdict:
    if lenience is None:
        return accept_argmax(proposal, scores)
    granted = granted_by_argmax_lenience(scores, proposal.tokens, lenience)
    verdict = accept_argmax(proposal, scores, granted)
    # A token that is not kept costs nothing: the argmax stands in its place.
    return replace(verdict, deviation=variation_of_argmax(proposal.tokens, scores) * granted)
