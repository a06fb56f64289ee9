"""The tables of the paper next to the values of the formulas.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    Tables 1, 4 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from specdec_core.theory.paper import printed_numbers as paper
from specdec_core.theory.speed import operations_increase, optimal_gamma, walltime_improvement

Cell: TypeAlias = str | int | float | None
"""A cell of a table; None where the paper prints nothing."""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes:
        title: Its title.
        columns: The columns' names, each with a Python format for its cells.
        rows: The cells of each row.
        notes: Remarks, in sentences.
    """

    title: str
    columns: Mapping[str, str]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def table_1() -> PaperTable:
    """Return Table 1 (section 3.5), and the bigram drafter of section 3.6."""
    columns = {"alpha": ".1f", "gamma": "d", "operations": ".2f", "Theorem 3.11": ".4f"}
    return PaperTable(
        "Table 1: operations and speed relative to autoregressive decoding, c = c_hat = 0",
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
        ("The last row is the bigram drafter of section 3.6, for which the paper only gives the speed.",),
    )


def table_4() -> PaperTable:
    """Return Table 4 (appendix A.3), with the range of Theorem 3.8 due to rounding of the printed inputs."""
    rows = []
    for row in paper.TABLE_4:
        given = walltime_improvement(row.alpha, row.gamma, row.c)
        same = "yes" if round(given, 1) == row.expected else "no"
        inputs = (row.task, row.drafter, row.temperature, row.gamma, row.alpha, row.c)
        rows.append((*inputs, row.expected, given, same, *rounding_range(row), row.measured))
    columns = {"task": "", "M_q": "", "temp": "d", "gamma": "d", "alpha": ".2f", "c": ".2f"}
    columns |= {"EXP": ".1f", "Theorem 3.8": ".3f", "same digit": "", "min": ".3f", "max": ".3f", "EMP": ".1f"}
    return PaperTable(
        "Table 4: expected and measured improvement, T5-XXL",
        columns,
        tuple(rows),
        (
            "min and max: the range of Theorem 3.8 for an alpha and a c that round to the printed ones; the "
            "authors had more digits.",
        ),
    )


def rounding_range(row: paper.Runtime) -> tuple[float, float]:
    """Return the range of Theorem 3.8, which rises with alpha and falls with c, for rounded inputs."""
    half = 0.005
    low = walltime_improvement(row.alpha - half, row.gamma, row.c + half)
    return low, walltime_improvement(row.alpha + half, row.gamma, row.c - half)


def table_5() -> PaperTable:
    """Return Table 5 (appendix A.5), and the improvement factors from the text around it."""
    small = next(row for row in paper.TABLE_5 if row.factors)
    greedy, gamma, c = paper.GREEDY_LENIENCE, paper.GREEDY_GAMMA, paper.LENIENCE_C
    best = [optimal_gamma(alpha, c) for alpha in small.alphas]
    columns: dict[str, tuple[str, Sequence[Cell]]] = {"l": (".1f", paper.LENIENCES)}
    columns |= {row.drafter: (".2f", row.alphas) for row in paper.TABLE_5}
    at_best = [walltime_improvement(alpha, k, c) for alpha, k in zip(small.alphas, best, strict=True)]
    columns |= {
        "speed": (".1f", small.factors),
        "best of 3.8": (".3f", at_best),
        "at gamma": ("d", best),
        "greedy": (".2f", greedy.alphas),
        "its speed": (".1f", greedy.factors),
        f"3.8 at gamma {gamma}": (".3f", [walltime_improvement(alpha, gamma, c) for alpha in greedy.alphas]),
    }
    return PaperTable(
        f"Table 5: alpha with lenience, T5-XXL on EnDe; speed with c = {c}",
        {heading: spec for heading, (spec, _) in columns.items()},
        tuple(zip(*(cells for _, cells in columns.values()), strict=True)),
        (
            f"speed: from the text, for {small.drafter}. No gamma gives it with the printed alphas.",
            f"greedy: alpha of {greedy.drafter} in greedy decoding. Its speed follows with the gamma of the text.",
        ),
    )


TABLES: dict[int, Callable[[], PaperTable]] = {1: table_1, 4: table_4, 5: table_5}
"""The tables by their number in the paper."""
