"""Why a run is as fast as it is, in words."""

from dataclasses import replace

import pytest

from specdec_core.study.expectation import Shares
from specdec_core.study.verdict import Facts, best_of, verdict

FINE = Facts(
    drafted=4.0,
    kept=2.4,
    drafting_steps=0.98,
    alpha=0.8,
    c=0.05,
    speedup=1.5,
    expected=1.5,
    by_gamma=(1.0, 1.2, 1.4, 1.5, 1.5),
    shares=Shares(0.5, 0.4, 0.05, 0.02, 0.03),
    verify_excess=1.0,
)


def test_the_sentence_says_what_was_kept_what_it_cost_and_what_to_do():
    facts = replace(FINE, kept=1.44, by_gamma=(1.0, 1.25, 1.8, 1.5, 1.4))
    assert verdict(facts) == (
        "keeps 1.4 of 4.0 drafted tokens a step; verifying takes 1.8 plain calls a step; gamma 2 should give 1.80×"
    )


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        (Shares(0.4, 0.3, 0.2, 0.05, 0.05), "verifying takes 1.8 plain calls a step"),
        (Shares(0.4, 0.1, 0.32, 0.1, 0.08), "drafting takes 0.8 plain calls a step"),
        (Shares(0.6, 0.1, 0.05, 0.2, 0.05), "the framework's own time is 20% of all"),
        (Shares(0.4, 0.1, 0.05, 0.1, 0.35), "prompts and set-up take 35% of the time"),
        (Shares(0.97, 0.01, 0.01, 0.01, 0.0), "nearly all time is in plain calls of the target"),
        (Shares(0.0, 0.0, 0.0, 0.0, 1.0), "prompts and set-up take 100% of the time"),
    ],
)
def test_what_costs_most_is_named(shares, said):
    assert f"; {said}; " in verdict(replace(FINE, shares=shares))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"by_gamma": (1.0, 0.9, 0.8)}, "no gamma pays here"),
        ({"by_gamma": (1.0, 1.2, 1.5, 1.54, 1.4)}, "no other gamma should do much better"),
        ({"by_gamma": (1.0, 1.2, 1.3, 1.4, 1.5)}, "no gamma up to 4 should do better, a longer one may"),
        ({"by_gamma": (1.0, 1.2, 1.55)}, "gamma 2 should give 1.55×"),
        ({"by_gamma": ()}, "too few steps were timed to say which gamma is best"),
        ({"expected": None}, "too few steps were timed to say which gamma is best"),
    ],
)
def test_advice(change, said):
    assert verdict(replace(FINE, **change)).endswith(f"; {said}")


def test_a_drafter_that_is_often_silent():
    facts = replace(FINE, drafted=0.5, kept=0.3, drafting_steps=0.12)
    assert verdict(facts).startswith("drafts in 12% of the steps, and 60% of the tokens are kept; ")


def test_corollary_3_9():
    hopeless = replace(FINE, alpha=0.08, c=0.12, speedup=0.8, expected=0.8, by_gamma=(1.0, 0.9))
    assert verdict(hopeless) == "alpha 0.08 is not above c 0.12: no gamma pays (Corollary 3.9)"
    # A draft of several tokens may come from one call: what was measured has the last word.
    assert "Corollary" not in verdict(replace(hopeless, speedup=1.1))
    assert "Corollary" not in verdict(replace(hopeless, alpha=0.13))


def test_a_run_that_drafted_nothing():
    for change in ({"drafted": 0.0}, {"alpha": None}):
        assert verdict(replace(FINE, **change)) == "nothing was drafted: every step was one of plain decoding"


def test_measured_far_from_expected_is_said_with_its_reason():
    assert verdict(replace(FINE, speedup=1.34)).endswith(
        "; 1.50× was to be expected here: time it again on a quiet machine"
    )
    assert verdict(replace(FINE, speedup=1.2, verify_excess=1.3)).endswith(
        "; 1.50× was to be expected here, but a target call takes 1.3 times as long as in all runs together"
    )
    assert verdict(replace(FINE, speedup=2.0, verify_excess=0.7)).endswith(
        "takes 0.7 times as long as in all runs together"
    )
    # Slow calls do not explain that a run was fast, nor quick ones that it was slow.
    assert verdict(replace(FINE, speedup=2.0, verify_excess=1.3)).endswith("time it again on a quiet machine")
    assert verdict(replace(FINE, speedup=1.0, verify_excess=0.7)).endswith("time it again on a quiet machine")
    for near in (1.37, 1.64):
        assert "expected" not in verdict(replace(FINE, speedup=near))


def test_the_smallest_of_the_best():
    assert best_of((1.0, 1.2, 1.4, 1.4)) == 2
    assert best_of((1.0,)) == 0
