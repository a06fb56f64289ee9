"""The reason for a run's speed in one sentence: rules on its numbers. Importing this imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_core.study.report.expectation import MIN_COUNT
from specdec_core.study.report.formats import number, rate, share

if TYPE_CHECKING:
    from specdec_core.study.report.expectation import TimeShares

_MIN_GAIN = 1.03
"""Another gamma is suggested if it is expected to be this much faster than the drafts as they were."""
_MAX_GAP = 1.1
"""A measured speed-up that differs from the expected one by this factor is reported."""
_MANY_STEPS = 0.75
"""Drafting in a smaller share of the steps is reported."""
_MIN_SHARE = 0.05
"""Smaller shares of the time are not reported."""


@dataclass(frozen=True)
class RunFacts:
    """The numbers that a diagnosis is made from.

    Attributes:
        drafted: Mean number of tokens drafted per step.
        accepted: Mean number of them that were accepted.
        steps: Number of steps with a draft that were timed.
        drafting_steps: The share of steps with a draft.
        alpha: Accepted over verified draft tokens; None if none was verified.
        c: Cost coefficient; None if it was not measured.
        speedup: The measured speed-up.
        expected: The speed-up to expect here from the drafts as they were; None if too little was measured.
        by_gamma: The expected speed-up with gamma = 0, 1, ... K; empty if too little was measured.
        shares: Where the time went; None if too little was measured.
        verify_excess: Verification time over that of the same drafts in all runs of the study.
        trees: Whether drafts were trees.
        forced: The share of the tokens that a constraint forced.
        noisy: Whether the seconds of a replay are too noisy to compare gammas.
        drawn: Whether drafts were sampled although the target is greedy.
    """

    drafted: float
    accepted: float
    steps: int
    drafting_steps: float
    alpha: float | None
    c: float | None
    speedup: float
    expected: float | None
    by_gamma: tuple[float, ...]
    shares: TimeShares | None
    verify_excess: float
    trees: bool = False
    forced: float = 0.0
    noisy: bool = False
    drawn: bool = False


def best_of(by_gamma: tuple[float, ...]) -> int:
    """Return the gamma with the greatest speed-up, the smallest if several are equal."""
    return max(range(len(by_gamma)), key=lambda gamma: (by_gamma[gamma], -gamma))


def diagnose(facts: RunFacts) -> str:
    """Return why a run is as fast as it is, and what to change."""
    forced = [f"the constraint forces {share(facts.forced)} of the tokens"] if facts.forced else []
    if not facts.drafted or facts.alpha is None:
        return "; ".join(["nothing was drafted: every step was autoregressive", *forced])
    drawn = (
        ["the target is greedy but drafts are sampled: set temperature 0 in `draft_sampling`"]
        if facts.drawn
        else []
    )
    parts = [_effect(facts), *forced, *drawn, *_cause(facts.shares)]
    if _never_pays(facts):
        alpha, c = rate(facts.alpha), number(facts.c, 2)
        parts = [f"acceptance rate {alpha} is not above c {c}: no gamma pays (Corollary 3.9)"]
    else:
        parts += _advice(facts)
    return "; ".join(parts + _gap(facts))


def _never_pays(facts: RunFacts) -> bool:
    if facts.alpha is None or facts.c is None or facts.trees:
        return False
    return facts.speedup < 1 and facts.alpha <= facts.c and facts.steps >= MIN_COUNT


def _effect(facts: RunFacts) -> str:
    """Return the number of accepted draft tokens."""
    if facts.drafting_steps < _MANY_STEPS:
        steps, tokens = share(facts.drafting_steps), share(facts.accepted / facts.drafted)
        return f"drafts in {steps} of the steps, and {tokens} of the draft tokens are accepted"
    return f"{number(facts.accepted, 1)} of {number(facts.drafted, 1)} draft tokens are accepted per step"


def _cause(shares: TimeShares | None) -> list[str]:
    """Return what takes most of the time apart from target calls without a draft."""
    if shares is None:
        return []
    # The unit of c is easier to weigh than a share: target calls without a draft.
    call = shares.target or 1.0
    causes = [
        (shares.verifying, f"verifying takes {1 + shares.verifying / call:.1f} baseline target calls per step"),
        (shares.drafting, f"drafting takes {shares.drafting / call:.1f} baseline target calls per step"),
        (shares.framework, f"the framework takes {shares.framework:.0%} of the time"),
        (shares.outside, f"prompts and set-up take {shares.outside:.0%} of the time"),
    ]
    largest, words = max(causes)
    return [words] if largest >= _MIN_SHARE else ["nearly all time goes to target calls, as in the baseline"]


def _advice(facts: RunFacts) -> list[str]:
    """Return which gamma to use."""
    if facts.trees:
        return []
    if facts.expected is None or len(facts.by_gamma) < 2 or facts.steps < MIN_COUNT:
        return ["too few steps were timed to suggest a gamma"]
    if facts.noisy:
        return ["the times of steps are too noisy to suggest a gamma"]
    best = best_of(facts.by_gamma)
    if best == 0:
        return ["no gamma pays here"]
    if facts.by_gamma[best] >= _MIN_GAIN * facts.expected:
        return [f"gamma {best} should give {facts.by_gamma[best]:.2f}×"]
    if best == len(facts.by_gamma) - 1:
        return [f"no gamma up to {best} should do better; a larger one may"]
    return ["no other gamma should do much better"]


def _gap(facts: RunFacts) -> list[str]:
    """Return why the measured speed-up is far from the expected one, if it is."""
    if facts.expected is None or 1 / _MAX_GAP <= facts.speedup / facts.expected <= _MAX_GAP:
        return []
    gap = f"{facts.expected:.2f}× was expected here"
    excess = facts.verify_excess
    if excess >= _MAX_GAP if facts.speedup < facts.expected else excess <= 1 / _MAX_GAP:
        return [f"{gap}, but a target call takes {excess:.1f} times as long as in all runs together"]
    return [f"{gap}: time it again on a quiet machine"]
