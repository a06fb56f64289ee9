"""The tables of the paper beside what the formulas give.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    Tables 1, 4 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from specdec_core.theory import paper
from specdec_core.theory.speed import operations_increase, optimal_gamma, walltime_improvement

Cell: TypeAlias = str | int | float | None
"""What stands in a cell of a table; None where the paper gives nothing."""


@dataclass(frozen=True)
class PaperTable:
    """A table, for whoever shows it.

    Attributes:
        title: Which table it is.
        columns: Names of the columns, each with the format of its numbers, as Python spells formats.
        rows: As many cells as there are columns; None where the paper prints nothing.
        notes: What has to be said of it, in sentences.
    """

    title: str
    columns: Mapping[str, str]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def table_1() -> PaperTable:
    """Return Table 1 (section 3.5), and the bigram drafter of section 3.6 below it."""
    columns = {"alpha": ".1f", "gamma": "d", "operations": ".2f", "Theorem 3.11": ".4f"}
    return PaperTable(
        "Table 1: operations and speed against plain decoding, c = c_hat = 0",
        {**columns, "speed": ".2f", "Theorem 3.8": ".4f"},
        tuple(
            (
                row.alpha,
                row.gamma,
                row.operations,
                operations_increase(row.alpha, row.gamma, 0),
                row.speed,
                walltime_improvement(row.alpha, row.gamma, 0),
            )
            for row in (*paper.TABLE_1, paper.BIGRAM)
        ),
        ("The last row is the bigram drafter of section 3.6, of which the paper gives the speed only.",),
    )


def table_4() -> PaperTable:
    """Return Table 4 (appendix A.3), with what rounding of the printed alpha and c does to the expectation."""
    rows = []
    for row in paper.TABLE_4:
        given = walltime_improvement(row.alpha, row.gamma, row.c)
        same = "yes" if round(given, 1) == row.expected else "no"
        inputs = (row.task, row.drafter, row.temperature, row.gamma, row.alpha, row.c)
        rows.append((*inputs, row.expected, given, same, *rounding_range(row), row.measured))
    columns = {"task": "", "M_q": "", "temp": "d", "gamma": "d", "alpha": ".2f", "c": ".2f"}
    columns |= {"EXP": ".1f", "Theorem 3.8": ".3f", "same digit": "", "least": ".3f", "most": ".3f", "EMP": ".1f"}
    return PaperTable(
        "Table 4: expected and measured improvement, T5-XXL",
        columns,
        tuple(rows),
        (
            "least and most: what Theorem 3.8 gives for an alpha and a c that are printed like these, up to 0.005 "
            "off. The authors had more digits.",
        ),
    )


def rounding_range(row: paper.Runtime) -> tuple[float, float]:
    """Return the least and most that Theorem 3.8 gives for inputs that are printed as those of a row of Table 4.

    It rises with alpha and falls with c.
    """
    half = 0.005
    least = walltime_improvement(row.alpha - half, row.gamma, row.c + half)
    return least, walltime_improvement(row.alpha + half, row.gamma, row.c - half)


def table_5() -> PaperTable:
    """Return Table 5 (appendix A.5), and the improvement factors that the text around it names."""
    small = next(row for row in paper.TABLE_5 if row.factors)
    argmax, gamma, c = paper.ARGMAX_LENIENCE, paper.ARGMAX_GAMMA, paper.LENIENCE_C
    best = [optimal_gamma(alpha, c) for alpha in small.alphas]
    columns: dict[str, tuple[str, Sequence[Cell]]] = {"l": (".1f", paper.LENIENCES)}
    columns |= {row.drafter: (".2f", row.alphas) for row in paper.TABLE_5}
    at_best = [walltime_improvement(alpha, k, c) for alpha, k in zip(small.alphas, best, strict=True)]
    columns |= {
        "speed": (".1f", small.factors),
        "best of 3.8": (".3f", at_best),
        "at gamma": ("d", best),
        "argmax": (".2f", argmax.alphas),
        "its speed": (".1f", argmax.factors),
        f"3.8 at gamma {gamma}": (".3f", [walltime_improvement(alpha, gamma, c) for alpha in argmax.alphas]),
    }
    return PaperTable(
        f"Table 5: alpha with lenience, T5-XXL on EnDe; speed with c = {c}",
        {heading: spec for heading, (spec, _) in columns.items()},
        tuple(zip(*(cells for _, cells in columns.values()), strict=True)),
        (
            f"speed: what the text names for {small.drafter}. No gamma gives it with the printed alphas.",
            f"argmax: alpha of {argmax.drafter} under argmax. Its speed follows at the gamma it names.",
        ),
    )


TABLES: dict[int, Callable[[], PaperTable]] = {1: table_1, 4: table_4, 5: table_5}
"""The tables that there are, by their number in the paper."""
