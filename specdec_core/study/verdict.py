"""Why a run is as fast as it is, in one sentence: rules on its numbers. Importing this imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_core.study.expectation import Shares

_WORTHWHILE = 1.03
"""A gamma is named when it promises to be this much faster than the drafts as they were: less is noise."""
_OFF = 1.1
"""Measured and expected here that differ by such a factor are said, and verifying that does so explains it."""
_MOST = 0.75
"""Drafting in a smaller share of the steps is said."""
_SMALL = 0.05
"""A share of the time that is not worth a word."""


@dataclass(frozen=True)
class Facts:
    """What a verdict is made from.

    Attributes:
        drafted: Tokens drafted, on average over the steps.
        kept: Of which kept.
        drafting_steps: The share of the steps that had a draft.
        alpha: Kept draft tokens over judged ones; None when none was judged.
        c: Cost coefficient; None when it was not measured.
        speedup: As measured.
        expected: The speed-up to be expected here from the drafts as they were; None when too little was measured.
        by_gamma: The same for gamma = 0, 1, ... K; empty when too little was measured.
        shares: Where the time went.
        verify_excess: What verifying took over what the same drafts take in all runs of the study.
    """

    drafted: float
    kept: float
    drafting_steps: float
    alpha: float | None
    c: float | None
    speedup: float
    expected: float | None
    by_gamma: tuple[float, ...]
    shares: Shares | None
    verify_excess: float


def best_of(by_gamma: tuple[float, ...]) -> int:
    """Return the gamma with the greatest speed-up, the smallest of equals."""
    return max(range(len(by_gamma)), key=lambda gamma: (by_gamma[gamma], -gamma))


def verdict(facts: Facts) -> str:
    """Return why a run is as fast as it is, and what to change."""
    if not facts.drafted or facts.alpha is None:
        return "nothing was drafted: every step was one of plain decoding"
    parts = [_effect(facts), *_cause(facts.shares)]
    if facts.speedup < 1 and facts.c is not None and facts.alpha <= facts.c:
        parts = [f"alpha {facts.alpha:.2f} is not above c {facts.c:.2f}: no gamma pays (Corollary 3.9)"]
    else:
        parts += _advice(facts)
    return "; ".join(parts + _gap(facts))


def _effect(facts: Facts) -> str:
    """Return what the drafts are good for."""
    if facts.drafting_steps < _MOST:
        share = facts.kept / facts.drafted
        return f"drafts in {facts.drafting_steps:.0%} of the steps, and {share:.0%} of the tokens are kept"
    return f"keeps {facts.kept:.1f} of {facts.drafted:.1f} drafted tokens a step"


def _cause(shares: Shares | None) -> list[str]:
    """Return what takes most of the time beside plain calls of the target."""
    if shares is None:
        return []
    # Times of drafting and verifying are easier to weigh in plain calls of the target: the unit of c.
    call = shares.target or 1.0
    causes = [
        (shares.verifying, f"verifying takes {1 + shares.verifying / call:.1f} plain calls a step"),
        (shares.drafting, f"drafting takes {shares.drafting / call:.1f} plain calls a step"),
        (shares.framework, f"the framework's own time is {shares.framework:.0%} of all"),
        (shares.outside, f"prompts and set-up take {shares.outside:.0%} of the time"),
    ]
    most, words = max(causes)
    return [words] if most >= _SMALL else ["nearly all time is in plain calls of the target"]


def _advice(facts: Facts) -> list[str]:
    """Return which gamma to take."""
    if facts.expected is None or len(facts.by_gamma) < 2:
        return ["too few steps were timed to say which gamma is best"]
    best = best_of(facts.by_gamma)
    if best == 0:
        return ["no gamma pays here"]
    if facts.by_gamma[best] >= _WORTHWHILE * facts.expected:
        return [f"gamma {best} should give {facts.by_gamma[best]:.2f}×"]
    if best == len(facts.by_gamma) - 1:
        return [f"no gamma up to {best} should do better, a longer one may"]
    return ["no other gamma should do much better"]


def _gap(facts: Facts) -> list[str]:
    """Return why measured is far from what was expected here, if it is."""
    if facts.expected is None or 1 / _OFF <= facts.speedup / facts.expected <= _OFF:
        return []
    gap = f"{facts.expected:.2f}× was to be expected here"
    excess = facts.verify_excess
    if excess >= _OFF if facts.speedup < facts.expected else excess <= 1 / _OFF:
        return [f"{gap}, but a target call takes {excess:.1f} times as long as in all runs together"]
    return [f"{gap}: time it again on a quiet machine"]
