"""Drawing from a few ids on top of a lower_order, held against the row written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from specdec_core.interface import BackoffRow, LowerOrder, PluginError
from specdec_core.sampling.backoff import backoff_argmax, tempered_row, write_log_weights
from specdec_core.sampling.generators import MAX_UNIFORM

V = 12
EDGES = (0.0, 2**-53, 0.5, MAX_UNIFORM)


def backoff_row(ids, log_weights, log_backoff_weight=0.0, lower_order=None):
    if lower_order is None:
        lower_order = LowerOrder(np.log(np.arange(1, V + 1, dtype=np.float32)))
    return BackoffRow(lower_order, np.array(ids, np.int32), np.array(log_weights, np.float32), log_backoff_weight)


ROWS = {
    "some listed": backoff_row([2, 3, 7], [0.5, -1.0, 1.5], -0.7),
    "none listed": backoff_row([], []),
    "first and last listed": backoff_row([0, 11], [1.0, 2.0], -0.2),
    "neighbours at both ends": backoff_row([0, 1, 10, 11], [0.1, 0.2, 0.3, 0.4], 0.3),
    "all listed": backoff_row(range(V), np.linspace(-2, 2, V), 0.5),
    "all but one listed": backoff_row([n for n in range(V) if n != 5], np.zeros(V - 1), -1.0),
    "listed less than the lower_order gives": backoff_row([4, 11], [-3, -4], 0.4),
    "nothing beside the listed": backoff_row([1, 6], [0.0, 1.0], -math.inf),
    "listed with no weight": backoff_row([0, 6], [-math.inf, 0.3], -1.0),
    "a lower_order with gaps": backoff_row(
        [3, 9], [0.0, 1.0], 0.5, LowerOrder(np.where(np.arange(V) % 3 == 1, -np.inf, 0.2).astype(np.float32))
    ),
    "far from scale 1": backoff_row([2, 8], [500.0, 499.0], 497.0),
}


def written(row):
    out = np.empty(V, dtype=np.float32)
    write_log_weights(row, out)
    return out


def softmax(row, temperature):
    scores = written(row).astype(np.float64) / temperature
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def test_writing_out_puts_the_ids_over_the_weighted_lower_order():
    row = backoff_row([1, 4], [9.0, -9.0], 0.5)
    expected = np.log(np.arange(1, V + 1)) + 0.5
    expected[[1, 4]] = 9.0, -9.0
    np.testing.assert_allclose(written(row), expected, rtol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("name", ROWS)
def test_q_is_the_softmax_of_the_row_as_logits(name, temperature):
    at, expected = tempered_row(ROWS[name], temperature), softmax(ROWS[name], temperature)
    q = np.empty(V, dtype=np.float32)
    at.write(q)
    np.testing.assert_allclose(q, expected, rtol=5e-5, atol=1e-12)
    np.testing.assert_array_equal([at.probability(token) for token in range(V)], q)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("name", ROWS)
def test_evenly_spaced_numbers_draw_each_token_in_proportion_to_q(name, temperature):
    count = 4000
    at, expected = tempered_row(ROWS[name], temperature), softmax(ROWS[name], temperature)
    drawn = [at.draw((n + 0.5) / count) for n in range(count)]
    seen = np.bincount([token for token, _ in drawn], minlength=V)
    # By inversion each token has at most three intervals of numbers, each right to one part in `count`.
    np.testing.assert_allclose(seen / count, expected, atol=3 / count)
    assert all(q == at.probability(token) for token, q in drawn)


def test_random_rows_by_chi_square():
    generator = np.random.default_rng(5)
    lower_order = LowerOrder(generator.normal(size=V).astype(np.float32))
    for _ in range(20):
        ids = np.flatnonzero(generator.random(V) < generator.random())
        row = backoff_row(ids, generator.normal(size=len(ids)) + 1, generator.normal(), lower_order)
        at = tempered_row(row, 0.8)
        seen = np.bincount([at.draw(u)[0] for u in generator.random(5000)], minlength=V)
        assert chisquare(seen, softmax(row, 0.8) * 5000).pvalue > 1e-5


@pytest.mark.parametrize("name", ROWS)
def test_numbers_at_the_edges_never_draw_a_token_of_q_zero(name):
    row = ROWS[name]
    at = tempered_row(row, 1.0)
    boundaries = np.concatenate([np.cumsum(softmax(row, 1.0)), np.cumsum(at.probabilities, dtype=np.float64)])
    near = [x + d for x in boundaries for d in (-(2**-50), -(2**-53), 0.0, 2**-53, 2**-50)]
    for uniform in [*EDGES, *(u for u in near if 0 <= u <= MAX_UNIFORM)]:
        token, q = at.draw(uniform)
        assert q > 0
        assert at.probability(token) == q
        assert softmax(row, 1.0)[token] > 0


def test_rounding_never_leads_to_a_listed_id_or_beyond_the_last():
    at = tempered_row(ROWS["neighbours at both ends"], 1.0)
    for place in (0.0, 1e-300, at.lower_order.total, 2 * at.lower_order.total):
        assert 2 <= at._draw_unlisted(place) <= 9
    assert [at._nearest_unlisted(token) for token in (0, 1, 5, 10, 12)] == [2, 2, 5, 9, 9]
    everything = tempered_row(ROWS["all listed"], 1.0)
    assert everything._nearest_unlisted(4) == 11  # no other id is left: the one with the largest q


def test_a_token_whose_q_underflows_is_never_drawn():
    lower_order = LowerOrder(np.array([-60.0] + [0.0] * (V - 1), np.float32))
    row = backoff_row([1, 2], [-120.0, 100.0], 0.0, lower_order)
    for uniform in EDGES:
        assert tempered_row(row, 1.0).draw(uniform) == (2, 1.0)


@pytest.mark.parametrize("name", ROWS)
def test_the_best_is_the_argmax_of_the_row_as_logits(name):
    assert backoff_argmax(ROWS[name]) == written(ROWS[name]).argmax()


def test_ties_go_to_the_lowest_id():
    flat = LowerOrder(np.zeros(V, dtype=np.float32))
    assert backoff_argmax(backoff_row([3], [0.0], 0.0, flat)) == 0
    assert backoff_argmax(backoff_row([0, 1], [-1.0, 0.0], 0.0, flat)) == 1
    assert backoff_argmax(backoff_row([0, 1], [-1.0, -2.0], 0.0, flat)) == 2
    assert backoff_argmax(backoff_row([5, 6], [2.0, 2.0], 0.0, flat)) == 5
    assert backoff_argmax(backoff_row([0, 1, 2], [-1.0, -1.0, -1.0], -2.0, flat)) == 0


def test_random_rows_have_the_same_best():
    generator = np.random.default_rng(6)
    for _ in range(300):
        lower_order = LowerOrder(generator.integers(0, 4, V).astype(np.float32))
        ids = np.flatnonzero(generator.random(V) < generator.random())
        row = backoff_row(ids, generator.integers(0, 5, len(ids)), int(generator.integers(-1, 2)), lower_order)
        assert backoff_argmax(row) == written(row).argmax()


def test_the_last_temperatures_are_cached():
    row = backoff_row([1], [0.0])
    assert tempered_row(row, 0.5) is tempered_row(row, 0.5)
    first = tempered_row(row, 0.5)
    for temperature in (0.6, 0.7, 0.8):
        tempered_row(row, temperature)
    assert tempered_row(row, 0.5) is not first
    backoff_argmax(row)
    assert len(row.prepared) <= 4
    assert len(row.lower_order.prepared) <= 4


def test_a_lower_order_is_moved_to_a_device_once():
    lower_order = tempered_row(backoff_row([1], [0.0]), 1.0).lower_order
    device = torch.device("cpu")
    assert lower_order.tensor(device) is lower_order.tensor(device)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (lambda: backoff_row([3, 1], [0, 0]), "ids must be strictly ascending"),
        (lambda: backoff_row([3, 3], [0, 0]), "strictly ascending"),
        (lambda: backoff_row([-1, 3], [0, 0]), r"within the vocabulary \(0 to 11\)"),
        (lambda: backoff_row([3, V], [0, 0]), "within the vocabulary"),
        (lambda: backoff_row([3, 4], [0]), r"ids of shape \(2,\) and .* log weights of shape \(1,\)"),
        (lambda: backoff_row([3, 4], [0, NAN]), "hold NaN"),
        (lambda: backoff_row([3, 4], [0, INF]), "plus infinity"),
        (lambda: backoff_row([3], [-INF], -INF), "nothing finite"),
        (lambda: backoff_row([3], [0], NAN), "hold NaN"),
        (lambda: backoff_row([3], [0], 0, LowerOrder(np.full(V, -INF, np.float32))), "no finite log weight"),
        (lambda: backoff_row([3], [0], 0, LowerOrder(np.full(V, NAN, np.float32))), "holds NaN"),
    ],
)
def test_rows_that_are_no_distribution_are_an_error(row, message):
    with pytest.raises(PluginError, match=message):
        tempered_row(row(), 1.0)


def test_a_listed_nan_has_no_best():
    with pytest.raises(PluginError, match="hold NaN"):
        backoff_argmax(backoff_row([3, 4], [0, NAN]))
