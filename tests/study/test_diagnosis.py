"""Why a run is as fast as it is, in words."""

from dataclasses import replace

import pytest

from specdec_core.study.report.diagnosis import RunFacts, best_of, diagnose
from specdec_core.study.report.expectation import TimeShares

FINE = RunFacts(
    drafted=4.0,
    accepted=2.4,
    steps=200,
    drafting_steps=0.98,
    alpha=0.8,
    c=0.05,
    speedup=1.5,
    expected=1.5,
    by_gamma=(1.0, 1.2, 1.4, 1.5, 1.5),
    shares=TimeShares(0.5, 0.4, 0.05, 0.02, 0.03),
    verify_excess=1.0,
)


def test_the_sentence_says_what_was_kept_what_it_cost_and_what_to_do():
    facts = replace(FINE, accepted=1.44, by_gamma=(1.0, 1.25, 1.8, 1.5, 1.4))
    said = diagnose(facts)
    assert said.startswith("1.4 of 4.0 draft tokens")
    assert "1.8 baseline target calls" in said
    assert said.endswith("gamma 2 should give 1.80×")


def test_what_is_small_is_not_called_none():
    assert diagnose(replace(FINE, accepted=0.01)).startswith("<0.1 of 4.0 draft tokens are accepted per step")
    rare = diagnose(replace(FINE, drafting_steps=0.001, accepted=3.9999))
    assert rare.startswith("drafts in <1% of the steps, and >99% of the draft tokens are accepted")
    hopeless = diagnose(replace(FINE, alpha=0.0, c=0.004, speedup=0.9))
    assert hopeless.startswith("acceptance rate 0 is not above c <0.01: no gamma pays")


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        (TimeShares(0.4, 0.3, 0.2, 0.05, 0.05), "verifying takes 1.8 baseline target calls per step"),
        (TimeShares(0.4, 0.1, 0.32, 0.1, 0.08), "drafting takes 0.8 baseline target calls per step"),
        (TimeShares(0.6, 0.1, 0.05, 0.2, 0.05), "the framework takes 20% of the time"),
        (TimeShares(0.4, 0.1, 0.05, 0.1, 0.35), "prompts and set-up take 35% of the time"),
        (TimeShares(0.97, 0.01, 0.01, 0.01, 0.0), "nearly all time goes to target calls, as in the baseline"),
        (TimeShares(0.0, 0.0, 0.0, 0.0, 1.0), "prompts and set-up take 100% of the time"),
    ],
)
def test_what_costs_most_is_named(shares, said):
    assert f"; {said}; " in diagnose(replace(FINE, shares=shares))


def test_sampled_drafts_of_a_greedy_target_are_named():
    assert "but drafts are sampled" not in diagnose(FINE)
    assert "; the target is greedy but drafts are sampled: set temperature 0" in diagnose(
        replace(FINE, drawn=True)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"by_gamma": (1.0, 0.9, 0.8)}, "no gamma pays here"),
        ({"by_gamma": (1.0, 1.2, 1.5, 1.54, 1.4)}, "no other gamma should do much better"),
        ({"by_gamma": (1.0, 1.2, 1.3, 1.4, 1.5)}, "no gamma up to 4 should do better; a larger one may"),
        ({"by_gamma": (1.0, 1.2, 1.55)}, "gamma 2 should give 1.55×"),
        ({"by_gamma": ()}, "too few steps were timed to suggest a gamma"),
        ({"expected": None}, "too few steps were timed to suggest a gamma"),
        ({"by_gamma": (1.0, 1.25, 1.8), "steps": 29}, "too few steps were timed to suggest a gamma"),
        ({"by_gamma": (1.0, 1.25, 1.8), "steps": 30}, "gamma 2 should give 1.80×"),
    ],
)
def test_advice(change, said):
    assert diagnose(replace(FINE, **change)).endswith(f"; {said}")


def test_a_drafter_that_is_often_silent():
    facts = replace(FINE, drafted=0.5, accepted=0.3, drafting_steps=0.12)
    assert diagnose(facts).startswith("drafts in 12% of the steps, and 60% of the draft tokens are accepted; ")


def test_corollary_3_9():
    hopeless = replace(FINE, alpha=0.08, c=0.12, speedup=0.8, expected=0.8, by_gamma=(1.0, 0.9))
    assert diagnose(hopeless) == "acceptance rate 0.08 is not above c 0.12: no gamma pays (Corollary 3.9)"
    # A draft of several tokens may come from one call: what was measured has the last word.
    assert "Corollary" not in diagnose(replace(hopeless, speedup=1.1))
    assert "Corollary" not in diagnose(replace(hopeless, alpha=0.13))
    # Nor does an acceptance rate of a few tokens rule anything out.
    assert "Corollary" not in diagnose(replace(hopeless, steps=29))


def test_a_run_that_drafted_nothing():
    for change in ({"drafted": 0.0}, {"alpha": None}):
        assert diagnose(replace(FINE, **change)) == "nothing was drafted: every step was autoregressive"


def test_measured_far_from_expected_is_said_with_its_reason():
    assert diagnose(replace(FINE, speedup=1.34)).endswith(
        "; 1.50× was expected here: time it again on a quiet machine"
    )
    assert diagnose(replace(FINE, speedup=1.2, verify_excess=1.3)).endswith(
        "1.50× was expected here, but a target call takes 1.3 times as long as in all runs together"
    )
    assert diagnose(replace(FINE, speedup=2.0, verify_excess=0.7)).endswith(
        "takes 0.7 times as long as in all runs together"
    )
    # Slow calls do not explain that a run was fast, nor quick ones that it was slow.
    assert diagnose(replace(FINE, speedup=2.0, verify_excess=1.3)).endswith("time it again on a quiet machine")
    assert diagnose(replace(FINE, speedup=1.0, verify_excess=0.7)).endswith("time it again on a quiet machine")
    for near in (1.37, 1.64):
        assert "expected" not in diagnose(replace(FINE, speedup=near))


def test_the_smallest_of_the_best():
    assert best_of((1.0, 1.2, 1.4, 1.4)) == 2
    assert best_of((1.0,)) == 0
