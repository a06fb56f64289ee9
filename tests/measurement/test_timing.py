"""What is made of the times that steps report."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest

from specdec_core.decoding import Decoder
from specdec_core.decoding.timing import CyclingGamma, Medians, RepeatLastToken, watch_steps
from specdec_core.interface import BatchInfo, GenerationSettings, Outcome, StepReport
from specdec_core.measurement.file import DrafterEntry
from specdec_core.measurement.measure import measure_times
from specdec_core.measurement.timing import SynchronizedDrafter, timing_of
from tests.lossless import PROMPT, VOCAB, small_target
from tests.measurement.support import context
from tests.toys import NO_CONFIG, CountingDrafter, Gamma, TableDrafter


def report(asked, drafted, draft, verify, rest=0.5):
    tokens = ((),) * len(drafted)
    return StepReport(
        step=1,
        asked=asked,
        outcome=Outcome(
            drafted=drafted,
            accepted=(0,) * len(drafted),
            committed=((1,),) * len(drafted),
            finished=(False,) * len(drafted),
        ),
        draft_tokens=tokens,
        draft_seconds=draft,
        verify_seconds=verify,
        step_seconds=draft + verify + rest,
        deviation=(0.0,) * len(drafted),
    )


def test_medians_by_the_longest_draft_that_was_made():
    steps = [report((0, 0), (0, 0), 0.25, 4.0)]
    steps += [report((2, 2), (1, 2), draft, verify) for draft, verify in ((1, 5), (2, 6), (9, 99))]
    steps += [report((2, 2), (0, 0), 7.0, 4.0)]  # asked in vain
    found = Medians.of(steps, min_count=3)
    assert found.draft == {0: 0.0, 2: 2}
    assert found.verify == {0: 4.0, 2: 6}
    assert found.rest == 0.5
    assert found.lacks(2)
    assert Medians.of(steps, min_count=4).draft == {0: 0.0}
    means = Medians.of(steps, min_count=3, draft_average=fmean)
    assert means.draft == {0: 0.0, 2: 4}
    assert means.verify == {0: 4.0, 2: 6}
    assert found.verify_spread == {0: 0.0, 2: pytest.approx((99 - 5) / 12)}  # up to eight: the range
    assert found.draft_spread == {2: pytest.approx((9 - 1) / 4)}
    # The interval of Student's distribution for three values around 4.
    assert means.draft_spread == {2: pytest.approx(4.303 * math.sqrt(19 / 3) / 4)}


def test_the_spread_of_lengths_that_did_not_occur_is_between_that_of_others():
    medians = Medians({0: 0.0, 2: 2.0}, {0: 4.0, 2: 6.0}, 0.5, {2: 0.5}, {0: 0.25, 2: 0.125})
    found = timing_of(medians, 3).seconds
    assert found.verify_spread == (0.25, 0.1875, 0.125, 0.125)
    assert found.draft_spread == (0.5,) * 4


def test_lengths_that_did_not_occur_are_read_off_a_line():
    found = timing_of(Medians({0: 0.0, 2: 2.0, 3: 5.0}, {0: 4.0, 2: 6.0, 3: 6.5}, 0.5), 5)
    assert found.seconds.draft == pytest.approx((0, 1, 2, 5, 8, 11))
    assert found.seconds.verify == pytest.approx((4, 5, 6, 6.5, 7, 7.5))
    assert found.seconds.step == pytest.approx((4.5, 6.5, 8.5, 12, 15.5, 19))
    assert found.timed == (0, 2, 3)
    # k c nearest to the seconds, in units of T(0): (2 * 2 + 3 * 5) / (4 + 9) / 4.
    assert found.c == pytest.approx(19 / 13 / 4)


def test_a_falling_end_is_not_drawn_out():
    found = timing_of(Medians({0: 0.0, 1: 3.0, 2: 2.0}, {0: 4.0, 1: 5.0, 2: 4.5}, 0.0), 4)
    assert found.seconds.draft[2:] == (2.0, 2.0, 2.0)
    assert found.seconds.verify[2:] == (4.5, 4.5, 4.5)


def test_verification_of_missing_lengths_is_that_of_other_drafts():
    found = timing_of(
        Medians({0: 0.0, 1: 1.0}, {0: 4.0, 1: 5.0}, 0.0), 3, Medians({}, {0: 40.0, 1: 50.0, 2: 6.0, 3: 8.0}, 0.0)
    )
    assert found.seconds.verify == (4.0, 5.0, 6.0, 8.0)


def test_a_drafter_that_never_proposes_costs_nothing():
    found = timing_of(Medians({0: 0.0}, {0: 4.0}, 0.5), 2)
    assert found.c == 0
    assert found.seconds.step == (4.5, 4.5, 4.5)


def test_every_turn_has_every_length_and_goes_on_in_the_next_batch():
    controller = CyclingGamma(4, np.random.default_rng(0))
    info = BatchInfo(2, 4, (9, 9), False)
    asked = []
    for _ in range(4):
        session = controller.open(info)
        asked += [session.gamma() for _ in range(5)]
    assert all(one == other for one, other in asked)
    turns = [tuple(one for one, _ in asked[start : start + 5]) for start in range(0, 20, 5)]
    assert all(sorted(turn) == [0, 1, 2, 3, 4] for turn in turns)
    assert len(set(turns)) > 1


@pytest.fixture(scope="module")
def target(device):
    return small_target(device)


def timed(settings):
    return settings.model_dump(include={"gamma", "timings", "batch_size", "max_new_tokens", "seed"})


@pytest.mark.parametrize("batch_size", [1, 3])
def test_steps_of_all_lengths_are_watched(target, batch_size):
    plan = context(target, timings=3, batch_size=batch_size, max_new_tokens=16)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=CyclingGamma(3, np.random.default_rng(0)), strict=True)
    done = []
    reports = watch_steps(decoder, plan.prompts, **timed(plan.settings), advance=done.append)
    assert len(reports) == 3 * 4
    assert all(one.step > 0 and len(one.outcome.drafted) == batch_size for one in reports)
    assert {max(one.outcome.drafted) for one in reports} == {0, 1, 2, 3}
    assert done[-1] == 4 * 4


@pytest.mark.parametrize("seed", [5, 8, 11, 14])
def test_a_plain_step_is_timed_however_few_steps_are(target, seed):
    plan = context(target, timings=1, gamma=1, max_new_tokens=16)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=CyclingGamma(1, np.random.default_rng(seed)), strict=True)
    reports = watch_steps(decoder, plan.prompts, **timed(plan.settings))
    assert len(reports) >= 2
    assert timing_of(Medians.of(reports, min_count=1), 1).seconds.verify[0] > 0


class Short(CountingDrafter):
    """Never more than one token."""

    def draft(self, tokens, budget):
        return super().draft(tokens, min(budget, 1))


def test_a_drafter_with_short_drafts_has_times_for_all(target):
    plan = context(target, timings=4, max_new_tokens=32)
    found = measure_times(plan, DrafterEntry("short", NO_CONFIG), Short(VOCAB))
    assert found.timed == (0, 1)
    assert len(found.seconds.verify) == len(found.seconds.step) == 4
    assert min(found.seconds.verify) > 0


def test_made_up_drafts_are_as_long_as_asked(target):
    decoder = Decoder(target, RepeatLastToken(target.info()), gamma=Gamma(3), strict=True)
    first = next(decoder.stream([list(PROMPT)], GenerationSettings(max_new_tokens=8)))
    assert first.draft_tokens == ((PROMPT[-1],) * 3,)


def test_the_device_is_waited_for_behind_every_draft_and_commit(target):
    waits = []
    settings = GenerationSettings(max_new_tokens=8, seed=1)
    waiting = SynchronizedDrafter(TableDrafter(VOCAB), lambda: waits.append(1))
    result = Decoder(target, waiting, gamma=Gamma(2), strict=True).generate([list(PROMPT)], settings)
    alone = Decoder(target, TableDrafter(VOCAB), gamma=Gamma(2), strict=True).generate([list(PROMPT)], settings)
    assert result.sequences == alone.sequences
    calls = result.metrics.target_calls
    assert calls < len(waits) <= 2 * calls
