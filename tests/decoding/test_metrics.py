"""Counts of a step, by position and by draft length, and how they add up."""

import json
from dataclasses import asdict
from time import sleep

import pytest

from specdec_core.decoding.counts import Metrics, StepTimes, Tally
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import Outcome, StepReport
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models import wrap_model
from tests.tiny import tiny_model
from tests.toys import Gamma, TableDrafter


def report(step, asked, drafted, accepted, committed, *, seconds=(0.25, 0.5, 1.0), deviation=None):
    """A step of rows that committed so many tokens; drafting, verifying and the whole took `seconds`."""
    rows = len(asked)
    return StepReport(
        step=step,
        asked=asked,
        outcome=Outcome(
            drafted=drafted,
            accepted=accepted,
            committed=tuple((7,) * count for count in committed),
            finished=(False,) * rows,
        ),
        draft_tokens=tuple((7,) * count for count in drafted),
        draft_seconds=seconds[0],
        verify_seconds=seconds[1],
        step_seconds=seconds[2],
        deviation=deviation or (0.0,) * rows,
    )


def counted(*reports):
    tally = Tally(len(reports[0].asked))
    for one in reports:
        tally.add(one)
    assert tally.steps == len(reports)
    return tally.metrics


@pytest.mark.parametrize(
    ("accepted", "committed", "verified"),
    [
        (2, 3, 3),  # the third was rejected
        (4, 5, 4),
        (2, 2, 2),  # the second is a stop token, after which nothing is committed or verified
    ],
)
def test_a_step_is_counted_by_position(accepted, committed, verified):
    metrics = counted(report(0, (4,), (4,), (accepted,), (committed,)))
    assert metrics.asked_at == (1,) * 4
    assert metrics.verified_at == (1,) * verified
    assert metrics.accepted_at == (1,) * accepted
    counts = (metrics.tokens, metrics.drafted, metrics.accepted, metrics.rejected)
    assert counts == (committed, 4, accepted, verified - accepted)
    assert metrics.alpha == pytest.approx(accepted / verified)


def test_ragged_drafts_and_finished_sequences():
    metrics = counted(
        report(1, (2, 3, 0, 2), (1, 3, 0, 0), (1, 1, 0, 0), (2, 2, 0, 1), deviation=(0.5, 0, 0, 0.25))
    )
    assert metrics.asked_at == (3, 3, 1)
    assert metrics.verified_at == (2, 1)
    assert metrics.accepted_at == (2,)
    assert (metrics.row_steps, metrics.target_calls, metrics.draft_calls) == (3, 1, 3)
    assert metrics.deviation == 0.75
    # The step belongs to the longest draft of its rows, and to the most that a row was asked for.
    assert metrics.times == (StepTimes(), StepTimes(), StepTimes(), StepTimes(1, 0.25, 0.5, 1.0))
    assert metrics.steps_asked == (0, 0, 0, 1)


def test_the_prompts_step_is_in_the_sums_but_not_in_the_times():
    first = report(0, (2,), (2,), (0,), (1,), seconds=(4.0, 8.0, 16.0))
    metrics = counted(first, report(1, (2,), (1,), (0,), (1,)), report(2, (0,), (0,), (0,), (1,)))
    assert (metrics.draft_seconds, metrics.verify_seconds, metrics.seconds) == (4.5, 9.0, 18.0)
    assert metrics.times == (StepTimes(1, 0.25, 0.5, 1.0), StepTimes(1, 0.25, 0.5, 1.0))
    assert metrics.steps_asked == (1, 0, 1)
    assert counted(first).times == counted(first).steps_asked == ()


def test_costs_per_call_exclude_the_prompts_step():
    first = report(0, (2,), (2,), (0,), (1,), seconds=(4.0, 8.0, 16.0))
    metrics = counted(
        first,
        report(1, (3,), (3,), (0,), (1,), seconds=(0.6, 0.7, 2.0)),
        report(2, (3,), (0,), (0,), (1,), seconds=(0.2, 0.4, 1.0)),
        report(3, (0,), (0,), (0,), (1,), seconds=(0.0, 0.6, 1.0)),
    )
    # Three tokens and one empty draft; a step without a request has no call.
    assert metrics.draft_seconds_per_call == pytest.approx(0.8 / 4)
    assert metrics.verify_seconds_per_call == pytest.approx(1.0 / 2)
    assert counted(first).draft_seconds_per_call is None
    assert counted(first).verify_seconds_per_call is None
    assert Metrics().alpha is None


def test_counts_of_different_lengths_add_up_by_position():
    one = Metrics(tokens=2, verified_at=(3, 2, 1), deviation=0.5, times=(StepTimes(1, 0.1, 0.2, 0.4),))
    two = Metrics(
        tokens=5, verified_at=(4,), asked_at=(1,), times=(StepTimes(2, 0.1, 0.2, 0.4), StepTimes(3, 1, 2, 3))
    )
    for both in (one + two, two + one):
        assert (both.tokens, both.deviation) == (7, 0.5)
        assert (both.verified_at, both.asked_at) == ((7, 2, 1), (1,))
        assert both.times == (StepTimes(3, 0.2, 0.4, 0.8), StepTimes(3, 1, 2, 3))
    assert one + Metrics() == Metrics() + one == one
    assert StepTimes(1, 2, 3, 4) + StepTimes(10, 20, 30, 40) == StepTimes(11, 22, 33, 44)


def test_metrics_of_several_steps_are_the_sum_of_each():
    steps = [
        report(0, (2, 2), (2, 1), (1, 1), (2, 2)),
        report(1, (0, 3), (0, 2), (0, 2), (1, 3), deviation=(0.25, 0.5)),
        report(2, (1, 0), (1, 0), (0, 0), (1, 0)),
    ]
    assert counted(*steps) == sum(map(counted, steps), Metrics())


def test_metrics_survive_json():
    metrics = counted(report(0, (2,), (2,), (1,), (2,)), report(1, (3,), (3,), (3,), (4,), deviation=(0.5,)))
    assert Metrics.from_plain(asdict(metrics)) == metrics
    assert Metrics.from_plain(json.loads(json.dumps(asdict(metrics)))) == metrics


@pytest.mark.parametrize("change", [{"verified_at": None}, {"guessed": 3}])
def test_counters_of_another_version_are_an_error(change):
    plain = {**asdict(Metrics()), **change}
    kept = {key: value for key, value in plain.items() if value is not None}
    with pytest.raises(ValueError, match=next(iter(change))):
        Metrics.from_plain(kept)


def test_a_results_metrics_are_those_of_its_reports():
    trace = TraceObserver()
    decoder = Decoder(wrap_model(tiny_model("qwen3", 12)), TableDrafter(12), gamma=Gamma(3, 0, 2), strict=True)
    settings = GenerationSettings(max_new_tokens=17, ignore_eos=True)
    metrics = decoder.generate([[3, 4], [5], [6, 7, 8]], settings, [trace]).metrics
    again = counted(*trace.reports)
    assert metrics == again.with_seconds(metrics.seconds)
    assert metrics.seconds >= again.seconds
    assert sum(metrics.accepted_at) == metrics.accepted > 0
    assert sum(metrics.verified_at) == metrics.accepted + metrics.rejected
    assert sum(metrics.asked_at) == sum(sum(one.asked) for one in trace.reports)
    steps = metrics.target_calls - 1
    assert sum(time.steps for time in metrics.times) == sum(metrics.steps_asked) == steps


class Unready(TableDrafter):
    """Asks for hidden states that the target has not read, in every second step."""

    calls = 0

    def ready(self, hidden_states):
        self.calls += 1
        return self.calls % 2 == 0


def test_a_drafter_that_was_not_asked_has_no_budget():
    target, trace = wrap_model(tiny_model("llama", 40)), TraceObserver()
    decoder = Decoder(target, Unready(40), gamma=3, temperature=0)
    metrics = decoder.generate([[1, 2], [3]], max_new_tokens=9, ignore_eos=True, observers=[trace]).metrics
    asked = [any(report.asked) for report in trace.reports]
    assert asked[:4] == [False, True, False, True]
    assert metrics.draft_calls == sum(max(report.outcome.drafted) for report in trace.reports) > 0


def test_the_time_of_a_drafter_that_raises_is_the_drafters():
    class Slow(TableDrafter):
        def open(self, session):
            opened = super().open(session)

            def propose(request):
                sleep(0.05)
                raise ValueError("no draft")

            opened.propose = propose
            return opened

    decoder = Decoder(wrap_model(tiny_model("llama", 40)), Slow(40), gamma=3, temperature=0)
    with pytest.warns(PluginWarning):
        metrics = decoder.generate([1, 2], max_new_tokens=4).metrics
    assert metrics.draft_seconds >= 0.05
