"""The formulas beside the numbers that the paper prints."""

import pytest

from specdec_core.theory.speed import operations_increase, optimal_gamma, walltime_improvement
from tests.docs.pages import ROOT, load

paper = load(ROOT / "docs" / "paper_numbers.py")

MISSED = {("EnDe", "T5-base", 1): 0.003, ("EnDe", "T5-large", 1): 0.016, ("CNNDM", "T5-large", 1): 0.009}
"""Rows of Table 4 where Theorem 3.8 gives another digit, and by how much it falls short of the right one."""


def identity(row):
    return f"{row.task}-{row.drafter}-{row.temperature}" if isinstance(row, paper.Runtime) else str(row)


@pytest.mark.parametrize("row", paper.TABLE_1)
def test_table_1_to_the_printed_digit(row):
    assert round(walltime_improvement(row.alpha, row.gamma, 0), 2) == row.speed
    assert round(operations_increase(row.alpha, row.gamma, 0), 2) == row.operations


def test_the_bigram_of_section_3_6():
    row = paper.BIGRAM
    assert (row.alpha, row.gamma) == (0.2, 3)
    assert round(walltime_improvement(row.alpha, row.gamma, 0), 2) == row.speed == 1.25


@pytest.mark.parametrize("row", paper.TABLE_4, ids=identity)
def test_table_4_to_the_printed_digit_but_for_three_rows(row):
    given = walltime_improvement(row.alpha, row.gamma, row.c)
    short = MISSED.get((row.task, row.drafter, row.temperature))
    if short is None:
        assert round(given, 1) == row.expected
    else:
        assert round(given, 1) == pytest.approx(row.expected - 0.1)
        assert row.expected - 0.05 - given == pytest.approx(short, abs=0.0005)


@pytest.mark.parametrize("column", range(4))
def test_argmax_lenience_of_appendix_a_5(column):
    alpha, factor = paper.GREEDY_LENIENCE.alphas[column], paper.GREEDY_LENIENCE.factors[column]
    assert round(walltime_improvement(alpha, paper.GREEDY_GAMMA, paper.LENIENCE_C), 1) == factor


def test_the_factors_of_appendix_a_5_do_not_follow_from_table_5():
    """At no gamma, not even where rounding of the printed alpha and c is in their favor."""
    small = next(row for row in paper.TABLE_5 if row.drafter == "T5-small")
    assert small.alphas == (0.62, 0.71, 0.76, 0.84)
    assert small.factors == (2.5, 3.1, 3.6, 5.0)
    best = [walltime_improvement(a, optimal_gamma(a, 0.015), 0.015) for a in small.alphas]
    assert [round(factor, 1) for factor in best] == [2.3, 2.9, 3.4, 4.8]
    favored = [walltime_improvement(a + 0.005, optimal_gamma(a + 0.005, 0.0145), 0.0145) for a in small.alphas]
    assert [round(factor, 1) for factor in favored] == [2.4, 3.0, 3.5, 4.9]
