"""The optimal gamma: from numbers that are given, and from a file of measurements."""

import json

import pytest
from pydantic import ValidationError

from specdec_core.costs.measurement import Acceptance, DrafterMeasurement, Measurement, write_measurement
from specdec_core.costs.step_costs import StepCosts
from specdec_core.interface import ConfigError
from specdec_core.study import load_study
from specdec_core.theory.speed import walltime_improvement
from specdec_plugins.gamma.optimal import OptimalGamma, OptimalGammaConfig
from tests.plugins.gamma_simulation import batch_info, report

CHOSEN = {1.0: (0.9, 0.8, 0.1, 0.1), 0.0: (0.95, 0.95, 0.95, 0.95)}


def measurement(*drafters: DrafterMeasurement) -> Measurement:
    return Measurement(target="toy", device="cpu", sampling={}, versions={}, drafters=drafters)


def drafter(name, by_position=CHOSEN, step=(1.0, 1.2, 1.4, 1.6, 1.8), **more) -> DrafterMeasurement:
    acceptance = [
        Acceptance(
            temperature=temperature,
            tokens=100,
            alpha=rates[0] if rates else 0,
            low=0,
            high=1,
            by_position=rates,
            **{"proposed": (1.0,) * 4, "drafted": (1.0,) * 4, **more},
        )
        for temperature, rates in by_position.items()
    ]
    seconds = StepCosts(verify=step, overhead=0.0)
    return DrafterMeasurement(name=name, settings={}, acceptance=tuple(acceptance), seconds=seconds)


@pytest.fixture
def write(tmp_path):
    def write_file(*drafters):
        path = tmp_path / "measured.json"
        write_measurement(path, measurement(*drafters))
        return path

    return write_file


def gamma_of(**settings) -> int:
    return OptimalGamma(OptimalGammaConfig(**settings)).max_gamma


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("c", [0.0, 0.01, 0.05, 0.2, 0.5, 2.0])
def test_it_maximizes_theorem_3_8(alpha, c):
    best = gamma_of(alpha=alpha, c=c, max_gamma=12)
    improvements = [walltime_improvement(alpha, gamma, c) for gamma in range(13)]
    assert improvements[best] == pytest.approx(max(improvements), rel=1e-12)
    assert (best == 0) == (alpha <= c)  # Corollary 3.9


def test_every_row_is_asked_for_it_in_every_step():
    controller = OptimalGamma(OptimalGammaConfig(alpha=0.8, c=0.05))
    session = controller.open(batch_info(controller, 2))
    assert list(session.plan()) == [controller.max_gamma] * 2 == [8, 8]
    session.observe(report((8, 8), (0, 8)))
    assert list(session.plan()) == [8, 8]


def test_a_verification_that_is_not_flat_shortens_drafts():
    flat = gamma_of(alpha=0.8, c=0.05)
    # A machine that verifies up to three rows as fast as one, and then jumps.
    assert gamma_of(alpha=0.8, c=0.05, verify_cost=[1, 1, 1, 2.5]) == 2 < flat
    assert gamma_of(alpha=0.8, c=0.05, verify_cost=[1.0]) == flat
    assert gamma_of(alpha=0.8, c=0.05, verify_cost=[1, 2]) == 0  # which goes on as it began


def test_a_measurement_is_read(write):
    path = write(drafter("ngram"))
    # 1.9 / 1.2, 2.62 / 1.4, 2.692 / 1.6 ... tokens a second.
    assert gamma_of(measured=path) == 2
    assert gamma_of(measured=str(path), temperature=0) == 4
    assert gamma_of(measured=str(path), temperature=0, max_gamma=3) == 3
    assert gamma_of(measured=write(drafter("slow", step=(1.0, 3.0, 5.0)))) == 0
    assert gamma_of(measured=write(drafter("a", step=(1.0, 3.0)), drafter("b")), drafter="b") == 2


def test_drafts_that_come_seldom_are_weighed_as_they_come(write):
    rates, proposed, drafted = (0.9, 0.9, 0.9), (0.5, 0.8, 0.0), (0.5, 0.4, 0.0)
    path = write(drafter("copy", {1.0: rates[:2]}, (1.0, 1.5, 1.6, 1.7), proposed=proposed, drafted=drafted))
    steps = OptimalGammaConfig(measured=path).measured
    assert steps.rates == pytest.approx((0.45, 0.72, 0.0))
    assert steps.seconds == pytest.approx((1.0, 1.25, 1.29, 1.29))
    assert gamma_of(measured=path) == 2
    never = drafter("copy", {1.0: ()}, (1.0, 1.5), proposed=(0.0,), drafted=(0.0,))
    assert gamma_of(measured=write(never)) == 0


def test_the_settings_carry_what_was_read_and_can_be_read_again(write):
    config = OptimalGammaConfig(measured=write(drafter("ngram")))
    dumped = json.loads(config.model_dump_json())
    assert dumped["measured"]["rates"] == [0.9, 0.8, 0.1, 0.1]
    assert dumped["measured"]["seconds"] == pytest.approx([1.0, 1.2, 1.4, 1.6, 1.8])
    write(drafter("ngram", {1.0: (0.0,)}))  # what the file says later changes nothing
    again = OptimalGammaConfig(**dumped)
    assert again == config
    assert OptimalGamma(again).max_gamma == 2


STUDY = """\
target: builtin:target
prompts: [a b c]
runs:
  - drafter: random
    gamma: {name: optimal, measured: measured.json%s}
"""


def test_a_study_reads_it_from_its_own_folder(write, monkeypatch, tmp_path):
    folder = write(drafter("ngram")).parent
    (folder / "study.yaml").write_text(STUDY % "")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run = load_study(folder / "study.yaml").runs[1]
    assert run.resolved()["gamma"]["measured"]["rates"] == [0.9, 0.8, 0.1, 0.1]
    assert run.name == "random-optimal"


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (", drafter: haeds", "unknown drafter 'haeds'. Did you mean 'heads'? Available: heads, ngram."),
        ("", "measured.json: 2 drafters were measured; set `drafter` to one of ngram, heads."),
        (
            ", drafter: ngram, temperature: 0.7",
            "ngram was not measured at temperature 0.7; available: 1, 0.",
        ),
    ],
)
def test_a_choice_that_is_not_there_is_named_with_its_location(write, more, problem):
    folder = write(drafter("ngram"), drafter("heads")).parent
    (folder / "study.yaml").write_text(STUDY % more)
    with pytest.raises(ConfigError) as caught:
        load_study(folder / "study.yaml")
    assert problem in str(caught.value)
    assert "study.yaml:5:38: runs[0].gamma.measured: " in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give 'alpha' and 'c' .*got none of them"),
        (
            {"alpha": 0.5, "c": 0.1, "measured": {"file": "f", "rates": [1], "seconds": [1]}},
            "got 'alpha' and 'c' and 'measured'",
        ),
        (
            {"alpha": 0.5, "c": 0.1, "verify_cost": [0.05, 0.06]},
            r"verify_cost is .* 1, then .*got \[0.05, 0.06\]",
        ),
        ({"alpha": 0.5, "c": 0.1, "drafter": "ngram"}, "'drafter' selects from 'measured'"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        OptimalGammaConfig(**settings)
