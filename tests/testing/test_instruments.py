"""What the checks measure with: statistics, enumeration, small targets, and what a process shares."""

from __future__ import annotations

import random

import pytest
import torch
from scipy.stats import chisquare

from specdec_core.acceptance import dense
from specdec_core.border import Dense, Overlay, PointMass, Proposal, Sparse
from specdec_core.settings import SamplingSettings
from specdec_core.testing.instruments.drafts import drafts_of
from specdec_core.testing.instruments.enumeration import continuations
from specdec_core.testing.instruments.process import changes, restored, shared_state
from specdec_core.testing.instruments.statistics import chi_square, farthest, p_of_groups, p_of_sequences, p_value
from specdec_core.testing.instruments.world import (
    EOS,
    PROMPT,
    VOCAB,
    drop_spoilt,
    fresh_logits,
    small_target,
    world,
)


class TestStatistics:
    def test_p_values_are_those_of_scipy(self):
        observed, expected = [30, 14, 34, 45, 57, 20], [20.0, 20.0, 30.0, 40.0, 60.0, 30.0]
        statistic, freedom = chi_square(observed, expected)
        known = chisquare(observed, expected)
        assert (statistic, freedom) == (pytest.approx(known.statistic), 5)
        assert p_value(statistic, freedom) == pytest.approx(known.pvalue)

    def test_rare_outcomes_share_a_bin(self):
        assert chi_square([50, 46, 1, 3], [50.0, 44.0, 3.0, 3.0]) == (pytest.approx(4 / 44 + 4 / 6), 2)

    def test_a_little_that_is_left_joins_the_last_bin(self):
        assert chi_square([50, 46, 4], [50.0, 49.0, 1.0]) == (0, 1)

    def test_one_outcome_cannot_surprise(self):
        assert p_value(*chi_square([7], [7.0])) == 1

    def test_groups_add_up(self):
        one, two = ([60, 40], [50.0, 50.0]), ([30, 70], [50.0, 50.0])
        statistic = chi_square(*one)[0] + chi_square(*two)[0]
        assert p_of_groups([one, two]) == pytest.approx(p_value(statistic, 2))

    def test_sequences_as_expected_are_believed_and_others_are_not(self):
        expected = {(0, 0): 0.25, (0, 1): 0.25, (1,): 0.5}
        assert p_of_sequences({(0, 0): 260, (0, 1): 240, (1,): 500}, expected) > 0.5
        assert p_of_sequences({(0, 0): 400, (0, 1): 100, (1,): 500}, expected) < 1e-6

    def test_the_impossible_is_not_believed(self):
        assert p_of_sequences({(0,): 500, (1,): 499, (2,): 1}, {(0,): 0.5, (1,): 0.5}) == 0

    def test_what_stands_out_is_named(self):
        expected = {(0, 0): 0.25, (0, 1): 0.25, (1,): 0.5}
        assert farthest({(0, 0): 400, (0, 1): 100, (1,): 500}, expected)[0] in ((0, 0), (0, 1))
        assert farthest({(0, 0): 100, (0, 1): 100, (1,): 800}, expected) == ((0,), 200, 500)


@pytest.mark.parametrize("encoder_decoder", [False, True])
@pytest.mark.parametrize(
    "settings", [SamplingSettings(), SamplingSettings(top_k=2), SamplingSettings(temperature=0)]
)
def test_continuations_are_all_there_is(encoder_decoder, settings):
    exact = continuations(world(encoder_decoder).target, settings, length=3)
    assert sum(exact.values()) == pytest.approx(1)
    assert all(len(tokens) == 3 or tokens[-1] == EOS for tokens in exact)


@pytest.mark.parametrize("encoder_decoder", [False, True])
def test_probabilities_are_products_of_the_targets(encoder_decoder):
    one = world(encoder_decoder)
    exact = continuations(one.target, SamplingSettings(), length=2)
    p = torch.softmax(fresh_logits(one.target, [[*one.begin(), 4]])[0, -2:].double(), dim=-1)
    assert exact[4, 2] == pytest.approx(float(p[0, 4] * p[1, 2]), rel=1e-4)


class TestASmallTarget:
    def test_is_made_without_touching_random_numbers(self):
        before = shared_state()
        small_target(seed=3)
        assert changes(before) == []

    def test_is_far_from_certain_and_from_even(self):
        p = torch.softmax(fresh_logits(world().target, [PROMPT])[0, -1], dim=-1)
        assert 0.01 < float(p.min()) < float(p.max()) < 0.9

    def test_that_was_changed_is_made_again(self):
        one = world()
        drop_spoilt()
        assert world() is one
        with torch.no_grad():
            one.target.model.get_output_embeddings().weight[3] = 0
        drop_spoilt()
        other = world()
        assert other is not one
        assert not torch.equal(
            other.target.model.get_output_embeddings().weight, one.target.model.get_output_embeddings().weight
        )


def test_what_a_process_shares_is_put_back():
    before = shared_state()
    with restored():
        torch.rand(1)
        random.random()
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        assert set(changes(before)) == {
            "torch's random numbers",
            "python's random numbers",
            "torch's gradient mode",
            "torch's default dtype",
        }
    assert changes(before) == []


IDS = torch.tensor([[[0, 3], [2, 5]]])
WEIGHTS = torch.tensor([[[0.4, 0.6], [0.7, 0.3]]])


@pytest.mark.parametrize(
    "q",
    [
        PointMass(),
        Sparse(IDS, WEIGHTS),
        Dense(torch.softmax(torch.arange(12.0).view(1, 2, 6), dim=-1)),
        Overlay(IDS, WEIGHTS / 2, torch.tensor([0.2, 0.1, 0.2, 0.2, 0.1, 0.2]), torch.tensor([[0.5, 0.25]])),
    ],
    ids=lambda q: type(q).__name__,
)
def test_every_form_of_q_is_written_out(q):
    proposal = Proposal(torch.tensor([[3, 2]]), (2,), q)
    (draft,) = drafts_of(proposal, VOCAB)
    assert draft.tokens == (3, 2)
    torch.testing.assert_close(torch.stack(draft.q), dense(q, proposal.tokens, VOCAB)[0].double())


def test_what_is_no_id_is_left_out_of_q():
    proposal = Proposal(torch.tensor([[3]]), (1,), Sparse(torch.tensor([[[3, 9]]]), torch.tensor([[[0.4, 0.6]]])))
    (draft,) = drafts_of(proposal, VOCAB)
    assert float(draft.q[0].sum()) == pytest.approx(0.4)
