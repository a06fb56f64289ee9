"""`specdec theory`."""

import json
import re

import pytest

from tests.commands import run_command


@pytest.fixture
def theory():
    def run(*arguments):
        return run_command("theory", *arguments, env={"COLUMNS": "200"})

    return run


def lines(result):
    """The lines of what was printed, which a table's frame must not hide."""
    assert result.exit_code == 0, result.output
    return [" ".join(re.sub(r"[│┃]", " ", line).split()) for line in result.stdout.splitlines()]


def test_speed_shows_every_gamma_and_marks_the_best(theory):
    said = lines(theory("speed", "--alpha", 0.62, "--c", 0.02, "--gamma", 12, "--c-hat", 0.01))
    assert "0 1.000 1.000× 1.000× 1/1.000" in said
    assert "6 2.539 2.267× 2.781× 1/2.539 best" in said
    assert "12 2.626 2.118× 4.996× 1/2.626 requested" in said
    assert "acceptance rate (alpha) 0.62, c 0.02, c_hat 0.01" in said
    assert "Corollary 3.9: alpha is above c, so drafting pays: at least 1.588×." in said
    assert "Section 3.5: the optimal gamma is 6, for 2.267×." in said
    assert "these times" not in " ".join(said)


def test_verification_that_is_not_flat(theory):
    said = lines(theory("speed", "--alpha", 0.8, "--c", 0.05, "--verify", "0:45,3:80,7:105"))
    assert "5 3.689 2.951× 1.626× 1/3.689 1.600× best" in said
    assert "8 4.329 3.092× 2.079× 1/4.329 1.507× best by 3.8" in said
    assert "With these times the best gamma is 5, for 1.600×." in said
    assert said.index("With these times the best gamma is 5, for 1.600×.") < said.index(
        "If the target verified a draft in the time of one token, as section 3.3 assumes:"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["speed", "--alpha", 0.5], "--c"),
        (["speed", "--alpha", 1.5, "--c", 0], "alpha must be in [0, 1]; given 1.5."),
        (["speed", "--alpha", 0.5, "--c", 0, "--verify", "1,x"], "given 'x'"),
        (["speed", "--alpha", 0.5, "--c", 0, "--verify", "1:2,3:4"], "0 draft tokens"),
        (["divergence", "--p", "0.5,0.5", "--q", "0.2,0.3,0.5"], "p and q must have the same shape"),
    ],
)
def test_numbers_that_are_not_allowed(theory, arguments, said):
    result = theory(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not result.stdout


def test_divergence(theory):
    said = lines(theory("divergence", "--p", "0.5,0.3,0.2", "--q", "0.6, 0.3,0.1"))
    assert "1 0.5000 0.6000 0.5000 0 0.5000" in said
    assert "3 0.2000 0.1000 0.1000 0.1000 0.2000" in said
    assert "D_LK(p, q) = 0.1 (Definition 3.2)" in said
    assert "beta = 1 - D_LK = sum min(p, q) = 0.9 (Theorem 3.5)" in said
    assert "rejection sampling would accept 0.5 (appendix A.2)" in said
    assert "with lenience" not in " ".join(said)


def test_divergence_with_lenience(theory):
    arguments = ("--p", "0.5,0.3,0.2", "--q", "0.6,0.3,0.1", "--lenience", 0.9)
    said = lines(theory("divergence", *arguments))
    assert "1 0.5000 0.6000 0.5556 0 0.5556" in said
    assert (
        "with lenience 0.9: sum min(p / l, q) = 0.9556, with total variation 0.05556 from p (appendix A.5)" in said
    )
    result = json.loads(theory("divergence", *arguments, "--json").stdout, parse_constant=pytest.fail)
    assert result["lenient_deviation"] == pytest.approx(0.5 / 0.9 - 0.5)
    assert result["output_distribution"] == pytest.approx([0.5 / 0.9, 0.3, 0.7 - 0.5 / 0.9])
