"""What `specdec measure` prints of a drafter. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import ConsoleRenderable, Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_core.measurement.expectation import Identical, compare_positions, expect
from specdec_core.measurement.file import Acceptance, DrafterMeasurement, StepSeconds

_NOTHING = "–"


def drafter_report(measured: DrafterMeasurement, batch_size: int, wanted: int) -> RenderableType:
    """Return what was found out about a drafter: two tables, and what follows from them in words.

    Args:
        measured: The drafter.
        batch_size: How many prompts were decoded together when its steps were timed.
        wanted: How many tokens were asked for.
    """
    acceptance = measured.acceptance
    tables: list[ConsoleRenderable] = [
        Text(f"{measured.name}: {_cost(measured)}", style="bold"),
        _rates(measured, batch_size),
    ]
    if any(len(one.by_position) > 1 for one in acceptance):
        tables += [Text("Acceptance by position in the draft:"), _positions(acceptance)]
    tables += [Text("Steps with a draft of k tokens:"), _seconds(measured.seconds, measured.timed)]
    return Group(*tables, Text("\n".join(_remarks(measured, wanted)) + "\n"))


def _cost(measured: DrafterMeasurement) -> str:
    """Return c in words, or that it is not known."""
    if measured.timed and max(measured.timed) == 0:
        return "c is not known, its drafts were too few to be timed (more --timings have more of them)"
    return f"c = {measured.c:.3f}"


def _table(*headings: str) -> Table:
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _rates(measured: DrafterMeasurement, batch_size: int) -> Table:
    sparse = any(one.proposed and min(one.proposed) < 1 for one in measured.acceptance)
    table = _table("T", "lenience", "alpha", "95% interval", "tokens", *(["proposed"] if sparse else []))
    for heading in ("Theorem 3.8\nbest γ", "\nexpected", "measured T(k)\nbest γ", "\nexpected"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in measured.acceptance:
        expected = expect(measured, one, batch_size)
        never = not any(one.proposed or (1.0,))
        table.add_row(
            f"{one.temperature:g}",
            f"{one.lenience:g}",
            _NOTHING if never else f"{one.alpha:.3f}",
            _NOTHING if never else f"{one.low:.3f} – {one.high:.3f}",
            f"{one.tokens:,}",
            *([f"{one.proposed[0]:.0%}"] if sparse else []),
            str(expected.ideal_gamma),
            f"{expected.ideal:.2f}×",
            str(expected.gamma),
            f"{expected.factor:.2f}×",
        )
    return table


def _positions(acceptance: tuple[Acceptance, ...]) -> Table:
    longest = max(len(one.by_position) for one in acceptance)
    table = _table("T", "lenience", *(str(place) for place in range(1, longest + 1)))
    for one in acceptance:
        rates = [f"{rate:.2f}" for rate in one.by_position]
        rates += [_NOTHING] * (longest - len(rates))
        table.add_row(f"{one.temperature:g}", f"{one.lenience:g}", *rates)
    return table


def _seconds(seconds: StepSeconds, timed: tuple[int, ...]) -> Table:
    table = _table("k", *(str(k) if k in timed else f"({k})" for k in range(len(seconds.step))))
    plain = seconds.verify[0]
    rows = {
        "drafting, ms": [f"{1000 * value:.2f}" for value in seconds.draft],
        "T(k), ms": [f"{1000 * value:.2f}" for value in seconds.verify],
        "T(k) / T(0)": [f"{value / plain:.2f}" if plain else _NOTHING for value in seconds.verify],
        "step, ms": [f"{1000 * value:.2f}" for value in seconds.step],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _remarks(measured: DrafterMeasurement, wanted: int) -> Iterator[str]:
    for one in measured.acceptance:
        at = f"T = {one.temperature:g}, l = {one.lenience:g}"
        if one.proposed and not any(one.proposed):
            yield f"{at}: the drafter proposed nothing; there is no alpha."
            continue
        compared = compare_positions(one)
        if compared is not None:
            yield f"{at}: {_verdict(compared)}"
        if one.tokens < wanted:
            yield f"{at}: {one.tokens:,} of {wanted:,} tokens, all that the prompts have at this temperature."
    missing = [str(k) for k in range(len(measured.seconds.step)) if k not in measured.timed]
    if missing:
        yield f"(k): drafts of {', '.join(missing)} tokens hardly occurred; T(k) there is that of made-up drafts."


def _verdict(found: Identical) -> str:
    if found.alike:
        return (
            f"the {found.positions} positions accept alike within their noise, as equation (1) takes it. Position "
            f"{found.position} differs most from the first, by {found.difference:+.3f} ± {found.noise:.3f}."
        )
    share = found.tokens / found.tokens_if_alike - 1
    return (
        f"not i.i.d.: acceptance at position {found.position} differs from the first by {found.difference:+.3f} "
        f"± {found.noise:.3f}. At γ = {found.positions} a call gives {found.tokens:.2f} tokens where equation (1) "
        f"says {found.tokens_if_alike:.2f} ({share:+.0%})."
    )
