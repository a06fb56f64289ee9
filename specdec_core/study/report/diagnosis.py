"""What to change about a run, and what to doubt: rules on its numbers. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specdec_core.study.report.expectation import MIN_COUNT, PARTS
from specdec_core.study.report.formats import number, rate, share
from specdec_core.study.report.layout import Column, ReportTable, Row

if TYPE_CHECKING:
    from specdec_core.study.report.summary import RunSummary

_MIN_GAIN = 1.03
"""Another gamma is suggested if it is expected to be this much faster than the drafts as they were."""
_MAX_GAP = 1.1
"""A measured speed-up that differs from the expected one by this factor is reported."""


def diagnose(run: RunSummary) -> str | None:
    """Return notes on a run; None for the baseline and for runs whose times are not known."""
    if run.drafter is None or run.speedup is None or run.gamma_mean is None or "engine" in run.config["run"]:
        return None
    notes = [_gamma(run) if run.drafted and run.alpha is not None else "nothing was drafted"]
    draft_sampling = run.config["run"].get("draft_sampling") or {}
    if run.config["sampling"]["temperature"] == 0 and draft_sampling.get("temperature", 0):
        notes.append("drafts are sampled although the target is greedy: set temperature 0 in `draft_sampling`")
    if run.forced:
        notes.append(f"a constraint forces {share(run.forced / run.tokens)} of the tokens")
    here = run.speedup_expected_here
    if here is not None and not 1 / _MAX_GAP <= run.speedup / here <= _MAX_GAP:
        notes.append(f"{here:.2f}× was expected here: time it again on a quiet machine")
    return "; ".join(filter(None, notes))


def _gamma(run: RunSummary) -> str:
    """Return which gamma to use."""
    by_gamma, best, here = run.speedup_by_gamma, run.gamma_best, run.speedup_expected_here
    if run.levels_mean is not None:
        return ""
    if best is None or here is None or len(by_gamma) < 2:
        return f"fewer than {MIN_COUNT} steps were timed: no gamma is suggested"
    if (run.speedup or 1) < 1 and run.alpha is not None and run.c is not None and run.alpha <= run.c:
        return (
            f"no gamma pays: acceptance rate {rate(run.alpha)} is not above c {number(run.c, 2)} (Corollary 3.9)"
        )
    if run.replayed is not None and run.replayed.noisy:
        return "the times of steps are too noisy to suggest a gamma"
    if best == 0:
        return "no gamma pays here"
    if by_gamma[best] >= _MIN_GAIN * here:
        return f"gamma {best} should give {by_gamma[best]:.2f}×"
    return f"a gamma above {best} may be faster" if best == len(by_gamma) - 1 else ""


def diagnosis_table(summaries: Sequence[RunSummary]) -> ReportTable | None:
    """Return where the time of each run went, and the notes on it; None if nothing was drafted and timed."""
    rows = [Row(tuple(_cells(one))) for one in summaries if one.diagnosis is not None]
    about = f"{'; '.join(PARTS.values())}."
    columns = (
        Column("run", numeric=False),
        Column("drafted\nper step", spare=2),
        Column("accepted", spare=1),
        *(Column(name, spare=3, note=about) for name in PARTS),
        Column("note", numeric=False, wraps=True),
    )
    return ReportTable(columns, tuple(rows), title="Diagnosis") if rows else None


def _cells(run: RunSummary) -> Iterator[str]:
    drafted = run.gamma_mean or 0.0
    yield run.name
    yield number(drafted, 1)
    yield number(drafted * run.accepted / max(1, run.drafted), 1)
    shares = run.time_shares or {}
    for part in PARTS:
        yield share(max(0.0, shares[part])) if part in shares else "–"
    yield run.diagnosis or ""
