"""`specdec theory`."""

import json
import re
import sys

import pytest
import typer
from typer.testing import CliRunner

from specdec_core.cli import main
from specdec_core.cli.theory import theory_app
from specdec_core.costs import StepCosts, best_gamma, improvement_at_cost
from specdec_core.measurement.measurement_file import (
    Acceptance,
    DrafterMeasurement,
    Measurement,
    write_measurement,
)
from specdec_core.theory import walltime_improvement
from specdec_core.theory.paper import printed_numbers as paper


@pytest.fixture(scope="module")
def app():
    """The command line, whichever commands it has besides."""
    app = typer.Typer(cls=main._Group)
    app.callback()(main._options)
    app.add_typer(theory_app, name="theory")
    return app


@pytest.fixture
def theory(app):
    def run(*arguments):
        return CliRunner().invoke(app, ["theory", *map(str, arguments)], env={"COLUMNS": "200"})

    return run


def lines(result):
    """The lines of what was printed, which a table's frame must not hide."""
    assert result.exit_code == 0, result.output
    return [" ".join(re.sub(r"[│┃]", " ", line).split()) for line in result.stdout.splitlines()]


def of_json(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_speed_shows_every_gamma_and_marks_the_best(theory):
    said = lines(theory("speed", "--alpha", 0.62, "--c", 0.02, "--gamma", 12, "--c-hat", 0.01))
    assert "0 1.000 1.000× 1.000× 1/1.000" in said
    assert "6 2.539 2.267× 2.781× 1/2.539 best" in said
    assert "12 2.626 2.118× 4.996× 1/2.626 requested" in said
    assert "acceptance rate (alpha) 0.62, c 0.02, c_hat 0.01" in said
    assert "Corollary 3.9: alpha is above c, so drafting pays: at least 1.588×." in said
    assert "Section 3.5: the optimal gamma is 6, for 2.267×." in said
    assert "An oracle for gamma: 2.632 tokens/step, 2.548×, 12% more than the optimal gamma." in said
    assert "these times" not in " ".join(said)


def test_speed_of_a_drafter_that_does_not_pay(theory):
    said = lines(theory("speed", "--alpha", 0.1, "--c", 0.1))
    assert "0 1.000 1.000× 1.000× 1/1.000 best" in said
    assert "Corollary 3.9: alpha is not above c, so no gamma pays; decode autoregressively." in said


def test_speed_of_a_drafter_that_costs_nothing(theory):
    said = lines(theory("speed", "--alpha", 1, "--c", 0, "--max-gamma", 20))
    assert "Section 3.5: the optimal gamma is 20, the largest that was considered, for 21.000×." in said
    assert any("the speed-up has no bound" in line for line in said)
    assert of_json(theory("speed", "--alpha", 1, "--c", 0, "--json"))["oracle_improvement"] is None


def test_verification_that_is_not_flat(theory):
    said = lines(theory("speed", "--alpha", 0.8, "--c", 0.05, "--verify", "0:45,3:80,7:105"))
    assert "5 3.689 2.951× 1.626× 1/3.689 1.600× best" in said
    assert "8 4.329 3.092× 2.079× 1/4.329 1.507× best by 3.8" in said
    assert "With these times the best gamma is 5, for 1.600×." in said
    assert said.index("With these times the best gamma is 5, for 1.600×.") < said.index(
        "If the target verified a draft in the time of one token, as section 3.3 assumes:"
    )


def test_times_may_have_any_unit(theory):
    one, thousand = (
        of_json(theory("speed", "--alpha", 0.8, "--c", 0.05, "--verify", times, "--json"))
        for times in ("1,1.5,2.25", "1000,1500,2250")
    )
    assert one == thousand
    assert one["best"]["gamma"] == 1
    assert one["best"]["improvement_at_cost"] == pytest.approx(1.8 / 1.55)


def test_speed_as_json(theory):
    result = of_json(theory("speed", "--alpha", 0.62, "--c", 0.02, "--json"))
    assert result["best"] == result["optimal"] == result["gammas"][6]
    assert result["best"]["improvement"] == walltime_improvement(0.62, 6, 0.02)
    assert (result["improves"], result["c_hat"]) == (True, 0)


@pytest.fixture
def measured(tmp_path):
    def drafter(name, alpha):
        return DrafterMeasurement(
            name=name,
            settings={"name": name},
            acceptance=(
                Acceptance(
                    temperature=1,
                    lenience=1,
                    tokens=100,
                    alpha=alpha,
                    low=alpha - 0.1,
                    high=alpha + 0.1,
                    by_position=(alpha, alpha / 2),
                ),
                Acceptance(temperature=0, lenience=0.5, tokens=9, alpha=1, low=1, high=1, by_position=(1,)),
            ),
            seconds=StepCosts(draft=(0, 0.001, 0.002, 0.003), verify=(0.009, 0.0105, 0.01, 0.013), overhead=0.001),
            c=0.1,
        )

    def write(*names):
        file = tmp_path / "measured.json"
        write_measurement(
            file,
            Measurement(
                target="t",
                device="cpu",
                batch_size=1,
                seed=0,
                sampling={},
                versions={},
                drafters=tuple(drafter(name, alpha) for name, alpha in zip(names, (0.8, 0.7), strict=False)),
            ),
        )
        return file

    return write


def test_speed_from_a_measurement(theory, measured):
    file = measured("transformer", "ngram")
    result = of_json(theory("speed", "--measured", file, "--drafter", "transformer", "--json"))
    rates, seconds = (0.8, 0.4, 0.0), (0.01, 0.0125, 0.013, 0.017)
    assert (result["alpha"], result["c"], result["max_gamma"]) == (0.8, 0.1, 3)
    assert result["best"]["gamma"] == best_gamma(rates, seconds) == 2
    assert result["best"]["improvement_at_cost"] == pytest.approx(improvement_at_cost(rates, 2, seconds))
    assert of_json(theory("speed", "--measured", file, "--drafter", "ngram", "--json"))["alpha"] == 0.7
    said = lines(theory("speed", "--measured", file, "--drafter", "transformer"))
    assert "2 2.440 2.033× 1.230× 1/2.440 2.120 1.631× best" in said


def test_a_drafter_that_proposes_in_one_step_of_two(theory, measured):
    file = measured("one")
    found = json.loads(file.read_text())
    found["drafters"][0]["acceptance"][0] |= {"proposed": [0.5, 1, 1], "drafted": [0.5, 0.5, 0.5]}
    file.write_text(json.dumps(found))
    result = of_json(theory("speed", "--measured", file, "--json"))
    # What is not proposed is not accepted, and takes the time of an autoregressive step.
    assert result["alpha"] == 0.4
    at_1 = result["gammas"][1]
    assert at_1["tokens"] == at_1["tokens_by_position"] == pytest.approx(1.4)
    assert at_1["improvement_at_cost"] == pytest.approx(1.4 * 0.01 / (0.01 + 0.5 * 0.0025))


def test_a_measurement_at_other_settings(theory, measured):
    arguments = ("--measured", measured("one"), "--temperature", 0, "--lenience", 0.5, "--json")
    assert of_json(theory("speed", *arguments))["alpha"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --alpha and --c, or --measured with a file that `specdec measure` wrote."),
        (["--alpha", 0.5], "give --alpha and --c"),
        (["--alpha", 1.5, "--c", 0], "alpha must be in [0, 1]; given 1.5."),
        (["--alpha", "nan", "--c", 0], "alpha must be in [0, 1]; given nan."),
        (["--alpha", 0.5, "--c", -1], "c must be a finite number, at least 0; given -1.0."),
        (["--alpha", 0.5, "--c", "inf"], "c must be a finite number, at least 0; given inf."),
        (["--alpha", 0.5, "--c", 0, "--c-hat", "nan"], "c_hat must be a finite number, at least 0; given nan."),
        (["--alpha", 0.5, "--c", 0, "--gamma", -1], "gamma must be a whole number, at least 0; given -1."),
        (["--alpha", 0.5, "--c", 0, "--max-gamma", -1], "max_gamma must be a whole number, at least 0; given -1."),
        (
            ["--alpha", 0.5, "--c", 0, "--verify", "1", "--max-gamma", -1],
            "must be a whole number, at least 0; given -1.",
        ),
        (["--alpha", 0.5, "--c", 0, "--gamma", 5, "--max-gamma", 4], "gamma must be at most 4, the largest gamma"),
        (
            ["--alpha", 0.5, "--c", 0, "--verify", "1,x"],
            "--verify: expected times such as 1,1.1,1.3, or TOKENS:TIME",
        ),
        (["--alpha", 0.5, "--c", 0, "--verify", ""], "--verify: expected times"),
        (["--alpha", 0.5, "--c", 0, "--verify", "1,0"], "--verify: a time must be a finite number above 0"),
        (["--alpha", 0.5, "--c", 0, "--verify", "1,nan"], "--verify: a time must be a finite number above 0"),
        (["--alpha", 0.5, "--c", 0, "--verify", "1:2,3:4"], "--verify must include the time of 0 draft tokens"),
        (["--alpha", 0.5, "--c", 0, "--verify", "0:1,0:2"], "--verify gives the time of 0 draft tokens twice."),
        (["--alpha", 0.5, "--c", 0, "--verify", "1,-1:3"], "each k in verify must be"),
        (["--alpha", 0.5, "--c", 0, "--drafter", "x"], "--drafter x requires --measured."),
        (["--alpha", 0.5, "--c", 0, "--temperature", 1], "--temperature 1.0 requires --measured."),
        (["--alpha", 0.5, "--c", 0, "--max-gamma", 100_001], "max_gamma must be at most 100000, as every"),
    ],
)
def test_numbers_that_are_not_allowed(theory, arguments, said):
    result = theory("speed", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert not result.stdout


def test_measurements_that_do_not_say_it(theory, measured, tmp_path):
    file = measured("transformer", "ngram")
    for arguments, said in [
        ((), "2 drafters were measured; set `drafter` to one of transformer, ngram."),
        (("--drafter", "nram"), "unknown drafter 'nram'. Did you mean 'ngram'?"),
        (
            ("--drafter", "ngram", "--temperature", 0.5),
            "ngram was not measured at temperature 0.5 with lenience 1; available: 1 with 1, 0 with 0.5.",
        ),
        (("--drafter", "ngram", "--alpha", 0.5), "--alpha 0.5 is part of the measurement; omit it"),
        (("--drafter", "ngram", "--gamma", 4), "gamma must be at most 3, the largest gamma considered; given 4."),
    ]:
        result = theory("speed", "--measured", file, *arguments)
        assert result.exit_code == 2
        assert said in result.stderr
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert "is not a measurement" in theory("speed", "--measured", other).stderr
    assert "the file does not exist" in theory("speed", "--measured", tmp_path / "nothing.json").stderr
    text = json.loads(file.read_text())
    text["drafters"][0]["seconds"]["verify"] = []
    other.write_text(json.dumps(text))
    assert "is not a measurement" in theory("speed", "--measured", other, "--drafter", "transformer").stderr


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
    result = of_json(theory("divergence", *arguments, "--json"))
    assert result["lenient_deviation"] == pytest.approx(0.5 / 0.9 - 0.5)
    assert result["output_distribution"] == pytest.approx([0.5 / 0.9, 0.3, 0.7 - 0.5 / 0.9])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--p", "0.5,0.5", "--q", "0.2,0.3,0.5"], "p and q must have the same shape"),
        (["--p", "0.5,0.4", "--q", "0.5,0.5"], "p must sum to 1 over the vocabulary; it sums to 0.9."),
        (["--p", "0.5,half", "--q", "0.5,0.5"], "--p: expected numbers separated by commas"),
        (["--p", "", "--q", "1"], "--p: expected numbers separated by commas"),
        (["--p", "1", "--q", "nan"], "q must hold probabilities; q[0] is nan."),
        (["--p", "1", "--q", "1", "--lenience", 0], "lenience must be in (0, 1]; given 0."),
    ],
)
def test_distributions_that_are_none(theory, arguments, said):
    result = theory("divergence", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_tables_stand_beside_the_formulas(theory):
    assert "0.9 10 1.60 1.6031 6.86 6.8619" in lines(theory("table", 1))
    assert "0.2 3 – 3.2051 1.25 1.2480" in lines(theory("table", 1))
    assert "EnDe T5-base 1 5 0.68 0.04 2.4 2.347 no 2.274 2.423 2.4" in lines(theory("table", 4))
    assert "0.5 0.10 0.23 0.71 0.80 3.1 2.939 9 0.75 3.3 3.303" in lines(theory("table", 5))


def test_tables_as_json(theory):
    rows = of_json(theory("table", 4, "--json"))
    assert [row["EXP"] for row in rows] == [row.expected for row in paper.TABLE_4]
    assert sum(row["same digit"] == "no" for row in rows) == 3
    assert of_json(theory("table", 1, "--json"))[-1]["operations"] is None


def test_a_table_that_is_not_there(theory):
    result = theory("table", 2)
    assert result.exit_code == 2
    assert "table 2 does not exist; available: 1, 4, 5." in result.stderr


def test_a_figure_is_written(theory, tmp_path):
    file = tmp_path / "new" / "figure.svg"
    result = theory("figure", 2, "--output", file)
    assert result.exit_code == 0, result.output
    assert f"written: {file}" in " ".join(result.stderr.splitlines())
    assert "<svg" in file.read_text(encoding="utf-8")
    assert [path.name for path in file.parent.iterdir()] == ["figure.svg"]


def test_a_figure_replaces_what_is_there_only_when_it_may(theory, tmp_path):
    file = tmp_path / "figure.png"
    file.write_text("mine")
    result = theory("figure", 4, "--output", file)
    assert result.exit_code == 2
    assert "is there already; --overwrite replaces it" in result.stderr
    assert file.read_text() == "mine"
    assert theory("figure", 4, "--output", file, "--overwrite").exit_code == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_figures_that_cannot_be_drawn(theory, tmp_path, monkeypatch):
    assert "figure 1 does not exist; available: 2, 3, 4." in theory("figure", 1, "-o", tmp_path / "a.svg").stderr
    assert "use .svg or .png" in theory("figure", 2, "-o", tmp_path / "a.txt").stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = theory("figure", 2, "-o", tmp_path / "a.svg")
    assert result.exit_code == 2
    assert "pip install 'specdec-core[report]'" in result.stderr
    assert not list(tmp_path.iterdir())


def test_help_shows_how_it_is_called(theory):
    for arguments in [("--help",), ("speed", "--help"), ("divergence", "--help"), ("table", "--help")]:
        result = theory(*arguments)
        assert result.exit_code == 0
        assert "specdec theory " in result.stdout


def test_a_gpu_is_forecast_for_each_batch_context_and_rate(theory):
    arguments = (
        "gpu",
        "--target",
        "llama-3-8b",
        "--drafter",
        "llama-3-1b",
        "--alpha",
        "0.6,0.8",
        "--batch",
        "1,4",
        "--max-gamma",
        "2",
    )
    shown = theory(*arguments)
    assert shown.exit_code == 0
    assert shown.output.startswith("Forecast, not a measurement")
    rows = json.loads(theory(*arguments, "--json").output)
    assert [(row["setting"]["batch"], row["alpha"]) for row in rows] == [(1, 0.6), (1, 0.8), (4, 0.6), (4, 0.8)]
    assert all(row["improvement"] == pytest.approx(row["speculative"] / row["plain"]) for row in rows)
    assert rows[1]["improvement"] > rows[0]["improvement"] >= 1


def test_a_gpu_is_forecast_with_a_profile_and_the_launches_of_a_plugin(theory, tmp_path):
    profile = tmp_path / "profile.json"
    fields = {"num_speculative_tokens": 2, "mean_accept_length": 2.4, "accept_length_model": "measured_per_k"}
    rates = {"marginal_accept_rates": [0.8, 0.6], "conditional_accept_rates": [0.8, 0.75]}
    profile.write_text(json.dumps({"accept_length_by_k": {"1": 1.7, "2": 2.4}, **fields, **rates}))
    arguments = ("gpu", "--target", "llama-3-8b", "--c", 0.05, "--profile", profile, "--batch", 1, "--json")
    (sampled,) = json.loads(theory(*arguments, "--execution", "eager").output)
    assert (sampled["gamma"], sampled["alpha"]) == (2, None)
    (greedy,) = json.loads(theory(*arguments, "--execution", "eager", "--temperature", 0).output)
    (heads,) = json.loads(theory(*arguments, "--execution", "eager", "--plugin", "heads").output)
    (given,) = json.loads(theory(*arguments, "--launches", 0).output)
    drafted = [one["setting"]["launches"]["drafted"] for one in (given, greedy, sampled, heads)]
    assert drafted == sorted(set(drafted))
    assert theory(*map(str, arguments[:-1])).exit_code == 0


def test_known_gpus_and_shapes_are_listed(theory):
    assert {"h100", "llama-3-8b"} <= set(re.split(r"[\s,;]+", theory("gpu", "--list").output))
    assert {"devices", "shapes"} == json.loads(theory("gpu", "--list", "--json").output).keys()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--target"),
        (("--target", "llama-3-8b"), "--drafter"),
        (("--target", "llama-3-8b", "--drafter", "llama-3-1b", "--c", 0), "--c"),
        (("--target", "llama-9", "--c", 0), "llama-9"),
        (("--target", "llama-3-8b", "--c", 0, "--device", "abacus"), "abacus"),
        (("--target", "llama-3-8b", "--c", 0, "--alpha", "1.5"), "alpha"),
        (("--target", "llama-3-8b", "--c", 0, "--batch", "0"), "--batch"),
        (("--target", "llama-3-8b", "--c", 0, "--plugin", "dflas"), "dflash"),
        (("--target", "llama-3-8b", "--c", 0, "--temperature", -1), "temperature"),
        (("--target", "llama-3-8b", "--c", 0, "--alpha", 0.5, "--profile", "p.json"), "--profile"),
        (("--target", "llama-3-8b", "--c", 0, "--profile", "missing.json"), "missing.json"),
        (("--target", "llama-3-8b", "--c", 0, "--context", "many"), "--context"),
    ],
)
def test_a_forecast_that_cannot_be_made_says_why(theory, arguments, named):
    result = theory("gpu", *arguments)
    assert result.exit_code != 0
    assert named in result.output
