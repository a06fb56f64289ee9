"""The table that `specdec measure` prints for a drafter. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from specdec_core.costs import StepCosts
from specdec_core.measurement.measurement_file import Acceptance, DrafterMeasurement
from specdec_core.measurement.position_test import PositionTest, compare_positions
from specdec_core.study.report.formats import UNKNOWN, number, rate, share, visible
from specdec_core.study.report.layout import Column, Prose, ReportTable, Row, for_terminal


def drafter_report(measured: DrafterMeasurement, batch_size: int, tokens: int) -> RenderableType:
    """Return the report on a drafter: tables, and remarks on them.

    Args:
        measured: The drafter.
        batch_size: Number of prompts that were decoded together while its steps were timed.
        tokens: Number of tokens that were requested.
    """
    acceptance = measured.acceptance
    parts: list[RenderableType] = [
        Text(visible(f"{measured.name}: {_cost(measured)}"), style="bold"),
        for_terminal(_rates(measured, batch_size)),
    ]
    if any(len(one.by_position) > 1 for one in acceptance):
        parts += [Text("Acceptance rate by position in the draft:"), for_terminal(_positions(acceptance))]
    if any(one.by_rank for one in acceptance):
        parts += [Text("Acceptance by depth and rank in a tree:"), for_terminal(_ranks(acceptance))]
    parts += [
        Text("Steps with a draft of k tokens:"),
        for_terminal(_seconds(measured.seconds)),
        *(Prose(remark) for remark in _remarks(measured, tokens)),
        Text(),
    ]
    return Group(*parts)


def _cost(measured: DrafterMeasurement) -> str:
    """Return c as text, or why it is unknown."""
    if _never_timed(measured.seconds):
        return "c is unknown: too few drafts to time (increase --timings)"
    shown = number(measured.c, 3)
    return f"c {shown}" if shown.startswith("<") else f"c = {shown}"


def _never_timed(seconds: StepCosts) -> bool:
    """Return whether drafts were too rare to time any."""
    return seconds.timed == (0,)


def _rates(measured: DrafterMeasurement, batch_size: int) -> ReportTable:
    sparse = any(one.proposed and min(one.proposed) < 1 for one in measured.acceptance)
    columns = (
        Column("T"),
        Column("lenience"),
        Column("acceptance\nrate"),
        Column("95% interval", spare=2),
        Column("tokens", spare=6),
        *([Column("proposed", spare=5)] if sparse else []),
        Column("Theorem 3.8\nbest γ", spare=3),
        Column("Theorem 3.8\nexpected", spare=4),
        Column("measured T(k)\nbest γ", spare=1),
        Column("measured T(k)\nexpected"),
    )
    rows = []
    for one in measured.acceptance:
        expected = measured.forecast(one, batch_size)
        never = not any(one.proposed or (1.0,))
        cells = (
            f"{one.temperature:g}",
            f"{one.lenience:g}",
            UNKNOWN if never else rate(one.alpha, 3),
            UNKNOWN if never else f"{rate(one.low, 3)} to {rate(one.high, 3)}",
            f"{one.tokens:,}",
            *([share(one.proposed[0])] if sparse else []),
            str(expected.optimal.gamma),
            number(expected.optimal.improvement, 2, "×"),
            str(expected.best.gamma),
            number(expected.best.improvement_at_cost, 2, "×"),
        )
        rows.append(Row(cells))
    return ReportTable(columns, tuple(rows), unknown="the drafter proposed nothing")


def _ranks(acceptance: Sequence[Acceptance]) -> ReportTable:
    count = max(len(row) for one in acceptance for row in one.by_rank)
    columns = (Column("T"), Column("depth"), *(Column(f"rank {rank}") for rank in range(1, count + 1)))
    rows = [
        Row((f"{one.temperature:g}", str(depth), *map(rate, row)))
        for one in acceptance
        for depth, row in enumerate(one.by_rank, start=1)
    ]
    return ReportTable(columns, tuple(rows))


def _positions(acceptance: tuple[Acceptance, ...]) -> ReportTable:
    longest = max(len(one.by_position) for one in acceptance)
    columns = map(Column, ("T", "lenience", *(str(position) for position in range(1, longest + 1))))
    rows = []
    for one in acceptance:
        rates = [*map(rate, one.by_position), *([UNKNOWN] * (longest - len(one.by_position)))]
        rows.append(Row((f"{one.temperature:g}", f"{one.lenience:g}", *rates)))
    return ReportTable(tuple(columns), tuple(rows), unknown="no draft was that long")


def _seconds(seconds: StepCosts) -> ReportTable:
    lengths = (str(k) if k in seconds.timed else f"({k})" for k in range(len(seconds.step)))
    baseline = seconds.verify[0]
    unknown = _never_timed(seconds)

    def milliseconds(values: Sequence[float]) -> list[str]:
        return [UNKNOWN if unknown and k else number(1000 * value, 2) for k, value in enumerate(values)]

    rows = {
        "drafting, ms": milliseconds(seconds.draft),
        "T(k), ms": [number(1000 * value, 2) for value in seconds.verify],
        "T(k) / T(0)": [number(value / baseline if baseline else None, 2) for value in seconds.verify],
        "step, ms": milliseconds(seconds.step),
    }
    return ReportTable(
        tuple(map(Column, ("k", *lengths))),
        tuple(Row((name, *cells)) for name, cells in rows.items()),
        unknown="too few drafts to time" if unknown else "T(0) was too short to time",
    )


def _remarks(measured: DrafterMeasurement, tokens: int) -> Iterator[str]:
    for one in measured.acceptance:
        at = f"T = {one.temperature:g}, l = {one.lenience:g}"
        if one.proposed and not any(one.proposed):
            yield f"{at}: the drafter proposed nothing; the acceptance rate is unknown."
            continue
        compared = compare_positions(one)
        if compared is not None:
            yield f"{at}: {_position_remark(compared)}"
        if one.tokens < tokens:
            yield f"{at}: {one.tokens:,} of {tokens:,} tokens; each prompt has one text at this temperature."
    missing = [str(k) for k in range(len(measured.seconds.step)) if k not in measured.seconds.timed]
    if missing:
        yield f"(k): drafts of {', '.join(missing)} tokens rarely occurred; T(k) is that of artificial drafts."


def _position_remark(found: PositionTest) -> str:
    if found.identical:
        return (
            f"the acceptance rates of {found.positions} positions are equal within noise, as equation (1) "
            f"assumes. Position {found.position} differs most from the first, by {found.difference:+.3f} "
            f"± {found.noise:.3f}."
        )
    share = found.tokens / found.tokens_if_identical - 1
    return (
        f"not i.i.d.: the acceptance rate at position {found.position} differs from the first by "
        f"{found.difference:+.3f} ± {found.noise:.3f}. At γ = {found.positions} a step gives "
        f"{found.tokens:.2f} tokens, where equation (1) predicts {found.tokens_if_identical:.2f} ({share:+.0%})."
    )
