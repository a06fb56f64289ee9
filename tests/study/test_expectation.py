"""The expected gain of a run, on numbers that were made up so that the answer is known."""

from dataclasses import replace

import pytest

from specdec_core.decoding.counts import Metrics, StepTimes
from specdec_core.study.report.expectation import (
    Expectation,
    added_by_position,
    draft_cost,
    speedup_bound,
    verify_cost,
)
from specdec_core.theory.speed import walltime_improvement


def autoregressive(calls=1000, verify=1.0, own=0.0, outside=0.0, tokens=None):
    """A baseline: so many calls of so many seconds each."""
    times = (StepTimes(calls, 0.0, calls * verify, calls * (verify + own)),)
    seconds = calls * (verify + own) + outside
    tokens = calls if tokens is None else tokens
    return Metrics(
        tokens=tokens, target_calls=calls, row_steps=calls, seconds=seconds, times=times, steps_asked=(calls,)
    )


def fixed(gamma, kept, calls=1000, draft=0.1, verify=1.0, own=0.0, outside=0.0):
    """A run of a fixed gamma; `kept[i]` of its calls kept the draft up to position i + 1."""
    took = StepTimes(calls, calls * gamma * draft, calls * verify, calls * (gamma * draft + verify + own))
    none = (StepTimes(),) * gamma
    return Metrics(
        tokens=calls + sum(kept),
        target_calls=calls,
        row_steps=calls,
        drafted=calls * gamma,
        accepted=sum(kept),
        asked_at=(calls,) * gamma,
        verified_at=(calls, *kept[:-1]),
        accepted_at=tuple(kept),
        seconds=took.seconds + outside,
        times=(*none, took),
        steps_asked=(0,) * gamma + (calls,),
        timed_draft_calls=calls * gamma,
    )


def asked(*, times, by_length, asked_at, verified_at, accepted_at, drafts):
    """A run of 1000 calls: how many asked for each length, and what became of each position."""
    return Metrics(
        tokens=1000 + sum(accepted_at),
        target_calls=1000,
        row_steps=1000,
        drafted=sum(verified_at),
        accepted=sum(accepted_at),
        asked_at=asked_at,
        verified_at=verified_at,
        accepted_at=accepted_at,
        seconds=sum(one.seconds for one in times),
        times=times,
        steps_asked=by_length,
        timed_draft_calls=drafts,
    )


def expect(run, baseline, cost=None, sequences=0, max_gamma=8):
    return Expectation(run, baseline, cost or {0: 1.0}, sequences, max_gamma)


HALVES = (500, 250, 125)
"""Kept by 1000 calls with alpha = 1/2 at gamma 3."""


def test_on_the_ideal_machine_it_is_theorem_3_8():
    baseline, run = autoregressive(), fixed(3, HALVES)
    found = expect(run, baseline)
    assert added_by_position(run) == (0.5, 0.5, 0.5)
    for gamma in range(1, 9):
        assert found.at(gamma) == pytest.approx(walltime_improvement(0.5, gamma, 0.1))
    assert found.at(0) == expect(fixed(3, HALVES, own=0.5), baseline).at(0) == 1  # no drafter, no framework
    assert found.here == pytest.approx(found.at(3)) == pytest.approx(1.875 / 1.3)


def test_a_run_that_follows_the_model_gets_exactly_what_was_predicted():
    # Each call takes 0.2 s for the framework; both take 30 s before their first step; verifying 3 takes 1.5 calls.
    baseline = autoregressive(own=0.2, outside=30.0)
    run = fixed(3, (800, 400, 300), verify=1.5, own=0.2, outside=30.0)
    measured = run.tokens_per_second / baseline.tokens_per_second
    assert measured == pytest.approx((2500 / (30 + 1000 * 2.0)) / (1000 / (30 + 1000 * 1.2)))
    found = expect(run, baseline, {0: 1.0, 3: 1.5})
    assert found.here == pytest.approx(measured)
    assert found.at(3) == pytest.approx(measured)
    # At gamma 1: 1.8 tokens a call, 1 + 0.5 / 3 + 0.1 + 0.2 s, and the same 30 s.
    calls = 2500 / 1.8
    assert found.at(1) == pytest.approx(2500 / (30 + calls * (1 + 0.5 / 3 + 0.3)) / (1000 / 1230))


def test_verifying_is_taken_from_all_runs_and_drafting_from_its_own():
    baseline, run = autoregressive(), fixed(3, HALVES, verify=2.0)
    found = expect(run, baseline, {0: 1.0, 3: 1.6})
    assert found.here == pytest.approx(1.875 / (1.6 + 0.3))


def test_prompts_are_no_shorter_with_a_drafter():
    # Half of the baseline's time is outside: not even a perfect drafter at no cost reaches a factor of 2.
    baseline, run = autoregressive(outside=1000.0), fixed(8, (1000,) * 8, draft=0.0, outside=1000.0 * 9)
    assert expect(run, baseline).here == pytest.approx(18 / 10)
    assert expect(run, baseline).at(8) == pytest.approx(18 / 10)


def test_a_drafter_that_proposes_less_than_asked_is_not_thought_to_propose_more():
    # Asked for 4 in each of 1000 calls, it had nothing 600 times, and otherwise 4 tokens of which all were kept.
    long, none = StepTimes(400, 40.0, 400 * 1.4, 400 * 1.5), StepTimes(600, 6.0, 600.0, 606.0)
    run = asked(
        times=(none, StepTimes(), StepTimes(), StepTimes(), long),
        by_length=(0, 0, 0, 0, 1000),
        asked_at=(1000,) * 4,
        verified_at=(400,) * 4,
        accepted_at=(400,) * 4,
        drafts=2200,
    )
    assert added_by_position(run) == (0.4, 1.0, 1.0, 1.0)
    found = expect(run, autoregressive(), {0: 1.0, 4: 1.4})
    measured = 2600 / (606 + 600)
    assert found.here == pytest.approx(measured)
    assert found.at(4) == pytest.approx(measured)
    # At gamma 2 it has 2 tokens as often as it had 4; drafting them takes what lies between 0.01 s and 0.1 s.
    step = 0.6 * 1.01 + 0.4 * (1.2 + 0.055)
    assert found.at(2) == pytest.approx(1.8 / step)


def test_a_controller_that_asks_for_less_is_not_taken_for_a_drafter_that_has_less():
    # 500 calls ask for 2 and 500 for none; every draft is whole, and both tokens are kept half of the time.
    short, none = StepTimes(500, 100.0, 500.0, 600.0), StepTimes(500, 0.0, 500.0, 500.0)
    run = asked(
        times=(none, StepTimes(), short),
        by_length=(500, 0, 500),
        asked_at=(500, 500),
        verified_at=(500, 250),
        accepted_at=(250, 250),
        drafts=1000,
    )
    found = expect(run, autoregressive())
    assert found.here == pytest.approx(1500 / 1100)
    assert found.at(2) == pytest.approx(2 / 1.2)


def test_the_last_step_of_a_row_drafts_beyond_its_end():
    # Nine tokens a call, ten rows of 14: two calls each, not 14 / 9.
    run, baseline = fixed(8, (20,) * 8, calls=20, draft=0.0), autoregressive()
    run = replace(run, tokens=140)
    assert expect(run, baseline, sequences=10).at(8) == pytest.approx(140 / ((140 + 10 * 4) / 9))


def test_rows_of_a_batch_end_one_by_one():
    run = fixed(1, (500,), draft=0.0)
    run = replace(run, target_calls=500, times=(StepTimes(), StepTimes(500, 0, 500.0, 500.0)))
    run = replace(run, seconds=500.0, steps_asked=(0, 500))
    baseline = replace(autoregressive(500), tokens=1000, row_steps=1000)
    assert expect(run, baseline).here == expect(run, baseline).at(1) == pytest.approx(1.5)


def test_first_steps_count_as_steps_and_not_their_time():
    # Ten sequences: ten steps with a prompt, which take 50 s, then a thousand at 1.1 s.
    run = fixed(1, (505,), calls=1010)
    later = (StepTimes(), StepTimes(1000, 100.0, 1000.0, 1100.0))
    run = replace(run, seconds=1150.0, times=later, steps_asked=(0, 1000), timed_draft_calls=1000)
    found = expect(run, autoregressive())
    assert found.here == found.at(1) == pytest.approx(1515 / 1150)


def test_beyond_what_was_asked_for_drafts_end_as_often_as_before():
    # Four in five drafts have a token, half of these a second one; all are kept. S(k) is 1 + k.
    times = tuple(StepTimes(n, 0.0, n * (1.0 + k), n * (1.0 + k)) for k, n in enumerate((200, 400, 400)))
    run = asked(
        times=times,
        by_length=(0, 0, 1000),
        asked_at=(1000, 1000),
        verified_at=(800, 400),
        accepted_at=(800, 400),
        drafts=1400,
    )
    found = expect(run, autoregressive(), {0: 1.0, 1: 2.0, 2: 3.0})
    assert found.here == pytest.approx(1)
    for gamma in (1, 2, 3, 8):
        assert found.at(gamma) == pytest.approx(1)


def test_lengths_that_were_hardly_seen_are_not_trusted():
    times = (StepTimes(), StepTimes(29, 0, 90.0, 90.0), StepTimes(400, 0, 600.0, 600.0), StepTimes(0))
    assert verify_cost(autoregressive(), times) == {0: 1.0, 2: pytest.approx(1.5)}
    # Where nothing was seen often, what was seen most has to do.
    few = (StepTimes(), StepTimes(1, 0, 9.0, 9.0), StepTimes(8, 0, 12.0, 12.0))
    assert verify_cost(autoregressive(), few) == {0: 1.0, 2: pytest.approx(1.5)}
    assert verify_cost(Metrics(), times) == {}
    assert added_by_position(Metrics(asked_at=(400, 400), verified_at=(400, 29), accepted_at=(29, 9))) == (
        29 / 400,
    )
    assert added_by_position(Metrics()) == ()


def test_nothing_kept_is_nothing_to_gain():
    run = fixed(2, (0, 0))
    found = expect(run, autoregressive())
    assert added_by_position(run) == (0.0,)
    assert found.at(5) == pytest.approx(1 / 1.5)
    assert found.here == pytest.approx(1 / 1.2)


def test_the_drafters_own_cost_by_length():
    assert draft_cost(fixed(3, HALVES, draft=0.1), autoregressive(verify=0.5)) == {3: pytest.approx(0.6)}
    assert draft_cost(fixed(3, HALVES), Metrics()) == {}


def test_shares_say_where_the_time_went():
    run = fixed(2, (500, 250), verify=1.5, draft=0.1, own=0.3, outside=500.0)
    assert expect(run, autoregressive()).shares == {
        "target": pytest.approx(1.0 / 2.5),
        "verifying": pytest.approx(0.5 / 2.5),
        "drafting": pytest.approx(0.2 / 2.5),
        "framework": pytest.approx(0.3 / 2.5),
        "outside": pytest.approx(0.5 / 2.5),
    }


def test_a_draft_that_was_cut_short_is_not_thought_to_go_on():
    # A controller that looks at the drafter's confidence asked for 4 each time, and stopped behind the first token
    # in all but 20 of 1000 calls. So few tokens behind it say how rare they are, and not that little is known.
    one, two = StepTimes(980, 98.0, 980.0, 1078.0), StepTimes(20, 4.0, 20.0, 24.0)
    run = asked(
        times=(StepTimes(), one, two),
        by_length=(0, 0, 0, 0, 1000),
        asked_at=(1000,) * 4,
        verified_at=(1000, 20),
        accepted_at=(600, 16),
        drafts=1020,
    )
    assert added_by_position(run) == pytest.approx((0.6, 16 / 600))
    found = expect(run, autoregressive())
    assert found.at(4) == pytest.approx(found.here, rel=0.01)
    assert found.at(8) < 1.01 * found.here


def test_no_run_is_faster_than_its_tokens_per_target_call_allow():
    baseline = autoregressive(1875)
    run = fixed(3, HALVES)
    assert speedup_bound(run, baseline) == 1.875
    # A drafter that costs nothing reaches it; prompts and the framework only take away.
    for took in ({"draft": 0.0}, {"own": 0.1}, {"outside": 500.0}, {"verify": 1.3}):
        took = {"draft": 0.0, **took}
        outside = took.get("outside", 0.0)
        plain = autoregressive(1875, own=took.get("own", 0.0), outside=outside)
        speedup = fixed(3, HALVES, **took).tokens_per_second / plain.tokens_per_second
        assert speedup <= speedup_bound(run, baseline) * (1 + 1e-12)
    assert fixed(3, HALVES, draft=0.0).tokens_per_second / baseline.tokens_per_second == pytest.approx(1.875)
    assert speedup_bound(baseline, baseline) == 1
    assert speedup_bound(Metrics(), baseline) is None


def test_the_bound_of_a_batch_holds_whether_calls_or_sequences_cost_time():
    # Two sequences of 8 tokens: one is drafted in 2 steps, the other in 8.
    baseline = Metrics(tokens=16, target_calls=8, row_steps=16)
    run = Metrics(tokens=16, target_calls=8, row_steps=10)
    assert speedup_bound(run, baseline) == 1.6, "if a call takes as long as it has sequences"
    ended = Metrics(tokens=16, target_calls=10, row_steps=16)
    assert speedup_bound(run, ended) == 1.6
    assert speedup_bound(Metrics(tokens=16, target_calls=4, row_steps=16), baseline) == 2


def test_a_replay_that_expects_less_than_one_draft_predicts_no_gamma():
    """Counts of a replay are means of drawn runs, of which few may draft."""
    run = replace(fixed(1, (1,)), asked_at=(0.5,), verified_at=(0.5,), accepted_at=(0.25,))
    assert added_by_position(run) == ()
    assert not expect(run, autoregressive()).drafted
