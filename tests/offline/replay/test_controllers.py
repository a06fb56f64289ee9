"""Gamma controllers along recorded texts: what they are told, and what their runs count on average."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from specdec_core.costs.step_costs import StepCosts
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError, PluginConfig, PluginError, StepReport, TokenTree
from specdec_core.interface.controllers import FixedGamma, FixedGammaConfig, GammaController, GammaSession
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.offline.replay.replayed_metrics import TextAcceptance, expected_metrics
from specdec_core.testing.harness.replaying import recorded_texts
from specdec_core.testing.harness.toys import Gamma, TableDrafter
from tests.catalogue import GAMMAS
from tests.offline.replay.support import PROMPT, all_texts, plain, replayed, small_target
from tests.toys import CountingDrafter

TARGET = StepCosts(verify=(1.0, 1.1, 1.2, 1.3, 1.5), overhead=0.05)
COSTS = TARGET.with_drafter((0.01, 0.1, 0.2, 0.3, 0.4))


class _Always(GammaController):
    """Asks for the same number of tokens, and is not the core's own controller."""

    def __init__(self, gamma: int) -> None:
        super().__init__(PluginConfig())
        self.gamma = gamma
        self.reports: list[StepReport] = []

    @property
    def max_gamma(self) -> int:
        return self.gamma

    def open(self, batch):
        return _AlwaysSession(self)


class _AlwaysSession(GammaSession):
    def __init__(self, controller: _Always) -> None:
        self.controller = controller

    def plan(self) -> Sequence[int]:
        return [self.controller.gamma]

    def observe(self, report: StepReport) -> None:
        self.controller.reports.append(report)


@pytest.fixture(scope="module")
def acceptance():
    target, sampling = small_target(), SamplingSettings()
    texts, _ = all_texts(target, sampling, 4)
    return replayed(target, texts[:40], sampling, TableDrafter(4), length=4).acceptance()


def test_drawn_runs_count_what_a_fixed_gamma_counts_on_average(acceptance):
    gamma = 3
    acceptance = acceptance[:16]
    exact = expected_metrics(acceptance, gamma, costs=COSTS)
    drawn = expected_metrics(acceptance, _Always(gamma), costs=COSTS, draws=200)
    assert drawn.metrics.tokens == exact.metrics.tokens
    assert drawn.drawn is not None
    difference = drawn.metrics.block_efficiency - exact.metrics.block_efficiency
    assert abs(difference) < 4.5 * drawn.drawn + 1e-12
    expected = plain(exact.metrics)
    for name, value in plain(drawn.metrics).items():
        np.testing.assert_allclose(value, expected[name][: len(value)], atol=0.6, err_msg=name)
    np.testing.assert_allclose(drawn.by_text["seconds"], exact.by_text["seconds"], rtol=0.2)
    np.testing.assert_allclose(drawn.by_text["steps"], exact.by_text["steps"], atol=0.4)


def test_a_fixed_gamma_may_skip_the_first_step_of_each_text(acceptance):
    unasked = []
    for skips in (False, True):
        controller = FixedGamma(FixedGammaConfig(gamma=2, skip_first=skips))
        metrics = expected_metrics(acceptance, controller, greedy=True, draws=1).metrics
        unasked.append(metrics.row_steps - metrics.asked_at[0])
    assert unasked[0] < len(acceptance) <= unasked[1]


def test_the_fixed_controller_is_computed_exactly(acceptance):
    controller = FixedGamma(FixedGammaConfig(gamma=2))
    one, other = expected_metrics(acceptance, controller), expected_metrics(acceptance, 2)
    assert one.drawn is None
    assert one.metrics == other.metrics


def test_times_are_the_machines(acceptance):
    found = expected_metrics(acceptance, 2, costs=COSTS)
    metrics = found.metrics
    # A step takes T(k), D(k) if it asked for a draft, and the overhead; the first of each text is not in `times`.
    for k, (verify, draft) in enumerate(zip((1.0, 1.1, 1.2), (0.0, 0.1, 0.2), strict=True)):
        times = metrics.times[k]
        assert times.verify_seconds == pytest.approx(times.steps * verify)
        assert times.draft_seconds == pytest.approx(times.steps * draft)
        assert times.seconds == pytest.approx(times.steps * (verify + draft + 0.05))
    first = len(acceptance) * (1.2 + 0.2 + 0.05)
    assert metrics.seconds == pytest.approx(sum(one.seconds for one in metrics.times) + first)
    assert metrics.seconds == pytest.approx(found.by_text["seconds"].sum())
    for costs in (TARGET, COSTS):
        alone = expected_metrics(acceptance, 0, costs=costs).metrics
        assert alone.seconds == pytest.approx(1.05 * alone.tokens)
        assert alone.draft_seconds == alone.times[0].draft_seconds == 0


def test_a_draft_that_is_empty_though_asked_for_takes_its_time():
    target, sampling = small_target(), SamplingSettings(temperature=0)

    class Nothing(CountingDrafter):
        def draft(self, tokens, budget):
            return ()

    texts = recorded_texts(target, PROMPT, [(2, 3, 0, 2)], sampling, 4)
    acceptance = replayed(target, texts, sampling, Nothing(4), length=4).acceptance()
    found = expected_metrics(acceptance, 2, costs=COSTS).metrics
    assert found.draft_seconds == pytest.approx(3 * 0.01)  # the last position before the limit is not asked for
    assert found.draft_calls == 3


@pytest.mark.parametrize("name", ["confidence", "cost-aware-given", "additive", "running-average"])
def test_greedy_runs_equal_live_decoding(name):
    """Where drafts are certain, nothing is drawn: every count is that of live decoding."""
    from specdec_core import default_registry

    kind, settings = GAMMAS[name]
    registry = default_registry()

    def controller():
        return registry.create("gamma", kind, registry.spec("gamma", kind).config(**settings))

    target, sampling = small_target(6), SamplingSettings(temperature=0)
    drafter = TableDrafter(6)
    generation = GenerationSettings(max_new_tokens=24, ignore_eos=True)
    live = Decoder(target, drafter, gamma=controller(), sampling=sampling).generate([list(PROMPT)], generation)
    text = live.sequences[0].tokens
    texts = recorded_texts(target, PROMPT, [text], sampling, 24)
    acceptance = replayed(target, texts, sampling, drafter, length=24).acceptance()
    found = expected_metrics(acceptance, controller(), greedy=True, draws=2)
    if name == "cost-aware-given":
        assert found.metrics.tokens == live.metrics.tokens  # it explores, by itself
        return
    for field in ("tokens", "target_calls", "accepted", "rejected", "accepted_at", "verified_at", "asked_at"):
        assert getattr(found.metrics, field) == pytest.approx(getattr(live.metrics, field)), field
    if name == "confidence":
        assert "confidence" in found.notes[0]


def test_confidence_is_what_a_controller_is_told_live():
    """For greedy drafts that is the softmax probability of the argmax, after the text's tokens."""
    target, sampling = small_target(6), SamplingSettings(temperature=0)
    drafter = TableDrafter(6)
    generation = GenerationSettings(max_new_tokens=12, ignore_eos=True)
    live = Decoder(target, sampling=sampling).generate([list(PROMPT)], generation)
    texts = recorded_texts(target, PROMPT, [live.sequences[0].tokens], sampling, 12)
    one = replayed(target, texts, sampling, drafter, max_gamma=3, length=12).acceptance()[0]
    told = drafter.table[[PROMPT[-1], *one.tokens[:-1].tolist()]].softmax(dim=1).max(dim=1).values
    known = np.isfinite(one.confidence[:, 0])
    assert known.sum() == 11  # the last position is not drafted
    np.testing.assert_allclose(one.confidence[known, 0], told.numpy()[known], rtol=1e-5)


def test_reports_are_those_of_decoding(acceptance):
    controller = _Always(2)
    expected_metrics(acceptance[:3], controller, costs=COSTS, draws=1)
    steps = iter(controller.reports)
    for text in acceptance[:3]:
        tokens: list[int] = []
        step = 0
        while len(tokens) < len(text):
            report = next(steps)
            outcome, new = report.outcome, report.outcome.committed[0]
            accepted = outcome.accepted[0]
            assert report.step == step
            assert report.asked == (min(2, text.limit - len(tokens) - 1),)
            assert report.draft_tokens[0][:accepted] == new[:accepted]
            assert len(report.draft_tokens[0]) == outcome.drafted[0]
            assert report.step_seconds == pytest.approx(report.draft_seconds + report.verify_seconds + 0.05)
            tokens += new
            step += 1
            assert outcome.finished == (len(tokens) == len(text),)
        assert tokens == text.tokens.tolist()


def test_same_seed_same_draws(acceptance):
    one, same, other = (expected_metrics(acceptance, Gamma(1, 3), draws=2, seed=seed) for seed in (1, 1, 2))
    assert one.metrics == same.metrics
    assert one.metrics != other.metrics


def test_the_error_of_two_draws_is_half_their_difference(acceptance):
    first, both = (expected_metrics(acceptance, Gamma(1, 3), draws=draws) for draws in (1, 2))
    mean = both.by_text["steps"].sum()
    assert both.drawn == pytest.approx(
        abs(first.by_text["steps"].sum() / mean - 1) * both.metrics.block_efficiency
    )
    assert both.drawn > 0


def test_each_budget_has_its_own_acceptance():
    """Drafts of one token are accepted, and drafts of two are not."""
    one, two = (
        TextAcceptance(np.full((6, 2), ratio), np.full(6, 2), np.full((6, 2), np.nan), np.arange(6), 9, reach=8)
        for ratio in (1.0, 0.0)
    )
    found = expected_metrics([replace(two, by_budget=(one, two))], Gamma(1, 2)).metrics
    assert (found.target_calls, found.accepted, found.rejected) == (4, 2, 2)  # 2 + 1 + 2 + 1 tokens


def test_what_is_refused(acceptance):
    with pytest.raises(ConfigError, match="max_gamma=7 or more"):
        expected_metrics(acceptance, 7)
    with pytest.raises(ConfigError, match="trees"):
        expected_metrics(acceptance, Gamma(2, tree=TokenTree((-1, 0))))
    with pytest.raises(ConfigError, match=r"D\(k\) is known for no k"):
        expected_metrics(acceptance, 2, costs=TARGET)
    with pytest.raises(ConfigError, match="no texts"):
        expected_metrics([], 2)
    broken = Gamma(2, 2.5)
    with pytest.raises(PluginError, match="Gamma failed at step 0: gamma"):
        expected_metrics(acceptance, broken)


def test_the_runs_of_a_text_do_not_depend_on_the_others(acceptance):
    together = expected_metrics(acceptance[:6], Gamma(1, 3), draws=3)
    apart = [expected_metrics([one], Gamma(1, 3), draws=3) for one in acceptance[3:6]]
    assert together.by_text["steps"][3:].tolist() == [one.by_text["steps"][0] for one in apart]
