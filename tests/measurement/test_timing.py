"""Which steps are timed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from specdec_core.measurement.measure import measure_times
from specdec_core.measurement.measurement_file import DrafterEntry
from specdec_core.measurement.synchronized import SynchronizedDrafter
from tests.measurement.support import context

from specdec_core.costs import measured_costs
from specdec_core.decoding import Decoder
from specdec_core.decoding.timing import CyclingGamma, RepeatLastToken, watch_steps
from specdec_core.interface import BatchInfo
from specdec_core.interface.settings import GenerationSettings
from specdec_core.testing.harness.toys import Hierarchy
from specdec_drafters.settings import TransformerConfig
from specdec_drafters.transformer import TransformerDrafter
from tests.lossless import PROMPT, VOCAB, small_target
from tests.toys import NO_CONFIG, CountingDrafter, Gamma, TableDrafter


def test_every_turn_has_every_length_and_goes_on_in_the_next_batch():
    controller = CyclingGamma(4, np.random.default_rng(0))
    info = BatchInfo(2, 4, (9, 9), False)
    asked = []
    for _ in range(4):
        session = controller.open(info)
        asked += [session.plan() for _ in range(5)]
    assert all(one == other for one, other in asked)
    turns = [tuple(one for one, _ in asked[start : start + 5]) for start in range(0, 20, 5)]
    assert all(sorted(turn) == [0, 1, 2, 3, 4] for turn in turns)
    assert len(set(turns)) > 1


@pytest.fixture(scope="module")
def target(device):
    return small_target(device)


def timed(plan):
    settings = plan.settings.model_dump(include={"gamma", "timings", "batch_size", "max_new_tokens", "seed"})
    return {**settings, "sampling": plan.sampling}


@pytest.mark.parametrize("batch_size", [1, 3])
def test_steps_of_all_lengths_are_watched(target, batch_size):
    plan = context(target, timings=3, batch_size=batch_size, max_new_tokens=16)
    done = []
    reports = watch_steps(target, TableDrafter(VOCAB), plan.prompts, **timed(plan), advance=done.append)
    assert len(reports) == 3 * 4
    assert all(one.step > 0 and len(one.outcome.drafted) == batch_size for one in reports)
    assert {max(one.outcome.drafted) for one in reports} == {0, 1, 2, 3}
    assert done[-1] == 4 * 4


@pytest.mark.parametrize("seed", [5, 8, 11, 14])
def test_a_plain_step_is_timed_however_few_steps_are(target, seed):
    plan = context(target, timings=1, gamma=1, max_new_tokens=16, seed=seed)
    reports = watch_steps(target, TableDrafter(VOCAB), plan.prompts, **timed(plan))
    assert len(reports) >= 2
    assert measured_costs(reports, 1, min_count=1).verify[0] > 0


class Short(CountingDrafter):
    """Never more than one token."""

    def draft(self, tokens, budget):
        return super().draft(tokens, min(budget, 1))


def test_a_drafter_with_short_drafts_has_times_for_all(target):
    plan = context(target, timings=4, max_new_tokens=32)
    found = measure_times(plan, DrafterEntry("short", NO_CONFIG), Short(VOCAB))
    assert found.timed == (0, 1)
    assert len(found.verify) == len(found.step) == 4
    assert min(found.verify) > 0


class Clock:
    """Time passes a little whenever it is asked for, and otherwise only when a drafter says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1e-3
        return self.now


class Uneven(CountingDrafter):
    """Two drafts of three are found at once, and one takes ten times as long."""

    def __init__(self, clock):
        super().__init__(VOCAB)
        self.clock, self.calls = clock, 0

    def draft(self, tokens, budget):
        self.calls += 1
        self.clock.now += 1.0 if self.calls % 3 else 10.0
        return super().draft(tokens, budget)


def test_drafts_that_differ_in_cost_cost_their_mean(target, monkeypatch):
    clock = Clock()
    for name, module in list(sys.modules.items()):
        if name.startswith("specdec_core.") and hasattr(module, "perf_counter"):
            monkeypatch.setattr(module, "perf_counter", clock)
    plan = context(target, timings=60, gamma=2, max_new_tokens=16)
    costs = measure_times(plan, DrafterEntry("uneven", NO_CONFIG), Uneven(clock))
    assert costs.draft[1:] == pytest.approx((4.0, 4.0), rel=0.2), "the median is 1"
    assert max(costs.verify) < 0.1, "the target is not charged for it"


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


def test_a_drafter_that_is_waited_for_drafts_as_it_does_alone(target, tmp_path):
    target.model.save_pretrained(tmp_path)
    drafter = TransformerDrafter(TransformerConfig(model=str(tmp_path)), target.info())
    waiting = SynchronizedDrafter(drafter, lambda: None)
    assert (waiting.drafts_trees, waiting.autoregressive) == (True, True)
    assert waiting.max_length == drafter.max_length
    for one in (drafter, waiting):
        decoder = Decoder(target, Hierarchy(target, one, Gamma(2)), gamma=Gamma(3), strict=True)
        result = decoder.generate([list(PROMPT)], GenerationSettings(max_new_tokens=8, seed=1))
        assert result.metrics.rejected == 0, "the middle model rolls back the drafter below"
