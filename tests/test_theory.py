import pytest

from specdec_core.theory import expected_tokens, walltime_improvement

# The SPEED column of table 1 of arXiv 2211.17192, where c is 0.
TABLE_1 = [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)]
# The column EXP of table 4, computed by its authors before alpha and c were rounded for print.
TABLE_4 = [(0.75, 7, 0.02, 3.2), (0.8, 7, 0.04, 3.3), (0.62, 7, 0.02, 2.3), (0.68, 5, 0.04, 2.4)]


@pytest.mark.parametrize(("alpha", "gamma", "speed"), TABLE_1)
def test_table_1_of_the_paper(alpha, gamma, speed):
    assert walltime_improvement(alpha, gamma, 0) == pytest.approx(speed, abs=0.005)


@pytest.mark.parametrize(("alpha", "gamma", "c", "expected"), TABLE_4)
def test_table_4_of_the_paper(alpha, gamma, c, expected):
    assert walltime_improvement(alpha, gamma, c) == pytest.approx(expected, abs=0.06)


def test_expected_tokens_is_the_geometric_sum():
    assert expected_tokens(0.37, 4) == pytest.approx(sum(0.37**i for i in range(5)))


def test_limits_of_alpha():
    assert expected_tokens(1, 5) == 6
    assert expected_tokens(1 - 1e-15, 5) == pytest.approx(6)
    assert expected_tokens(0, 5) == 1
    assert walltime_improvement(0.9, 0, 0.3) == 1


@pytest.mark.parametrize(
    ("alpha", "gamma", "c", "name"),
    [
        (-0.1, 2, 0, "alpha"),
        (1.1, 2, 0, "alpha"),
        (float("nan"), 2, 0, "alpha"),
        (0.5, -1, 0, "gamma"),
        (0.5, float("inf"), 0, "gamma"),
        (0.5, 2, -0.1, "c"),
        (0.5, 2, float("nan"), "c"),
    ],
)
def test_out_of_range_is_refused_by_name(alpha, gamma, c, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        walltime_improvement(alpha, gamma, c)
