"""Drawing from a few candidates, held against the same log weights written out."""

import math

import numpy as np
import pytest

from specdec_core.interface import Candidates, PluginError
from specdec_core.sampling.candidates import best_candidate, check_candidates, tempered, write_log_weights
from specdec_core.sampling.generators import MAX_UNIFORM

V = 12
NAN, INF = math.nan, math.inf


def row_of(ids, log_weights, dtype=np.float32):
    return Candidates(np.array(ids, np.int32), np.array(log_weights, dtype))


ROWS = {
    "three": row_of([2, 3, 7], [0.5, -1.0, 1.5]),
    "one": row_of([4], [-3.0]),
    "first and last": row_of([0, 11], [1.0, 2.0]),
    "all": row_of(range(V), np.linspace(-2, 2, V)),
    "some without weight": row_of([0, 5, 6, 11], [-INF, 0.3, -1.0, -INF]),
    "far from scale 1": row_of([2, 8], [5000.0, 4999.0]),
    "half precision": row_of([1, 2, 3], [0.5, 0.25, -4], np.float16),
    "whole numbers": row_of([1, 2], [0, 1], np.int64),
}


def softmax(row, temperature):
    """Return q of all V tokens, in float64."""
    scores = np.full(V, -INF)
    scores[row.ids] = row.log_weights
    weights = np.exp((scores - scores.max()) / temperature)
    return weights / weights.sum()


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("name", ROWS)
def test_q_is_the_softmax_of_the_log_weights_and_0_elsewhere(name, temperature):
    at, expected = tempered(ROWS[name], temperature), softmax(ROWS[name], temperature)
    np.testing.assert_allclose([at.probability(token) for token in range(V)], expected, rtol=1e-6)
    np.testing.assert_allclose(at.probabilities.sum(dtype=np.float64), 1, rtol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("name", ROWS)
def test_evenly_spaced_numbers_draw_each_token_in_proportion_to_q(name, temperature):
    count = 4000
    at, expected = tempered(ROWS[name], temperature), softmax(ROWS[name], temperature)
    drawn = [at.draw((n + 0.5) / count) for n in range(count)]
    seen = np.bincount([token for token, _ in drawn], minlength=V)
    # By inversion each token has one interval of numbers.
    np.testing.assert_allclose(seen / count, expected, atol=1.01 / count)
    assert all(q == at.probability(token) for token, q in drawn)


@pytest.mark.parametrize("name", ROWS)
def test_numbers_at_the_edges_never_draw_a_token_of_q_zero(name):
    at, q = tempered(ROWS[name], 1.0), softmax(ROWS[name], 1.0)
    near = [x + d for x in np.cumsum(q) for d in (-(2**-50), -(2**-53), 0.0, 2**-53, 2**-50)]
    for uniform in [0.0, 2**-53, MAX_UNIFORM, *(u for u in near if 0 <= u <= MAX_UNIFORM)]:
        token, own = at.draw(uniform)
        assert own > 0
        assert q[token] > 0


def test_a_token_whose_q_underflows_is_never_drawn():
    at = tempered(row_of([1, 2, 3], [-120.0, 100.0, -110.0]), 1.0)
    assert all(at.draw(uniform) == (2, 1.0) for uniform in (0.0, 2**-53, 0.5, MAX_UNIFORM))


@pytest.mark.parametrize("name", ROWS)
def test_the_best_is_the_argmax(name):
    assert best_candidate(ROWS[name]) == softmax(ROWS[name], 1.0).argmax()


def test_ties_go_to_the_lowest_id():
    assert best_candidate(row_of([3, 5, 6], [1.0, 2.0, 2.0])) == 5


@pytest.mark.parametrize("name", ROWS)
def test_tokens_that_are_no_candidates_are_written_far_below_all_others(name):
    row, out = ROWS[name], np.zeros(V, dtype=np.float32)
    write_log_weights(row, out)
    np.testing.assert_array_equal(out[row.ids], row.log_weights)
    others = np.delete(out, row.ids)
    assert np.isfinite(others).all()
    assert (others < row.log_weights[np.isfinite(row.log_weights)].min() - 15).all()


def test_what_is_computed_is_cached_for_the_last_temperature():
    row = row_of([1, 4], [0.0, 1.0])
    first = tempered(row, 0.5)
    assert tempered(row, 0.5) is first
    assert tempered(row, 0.6).probabilities[0] != first.probabilities[0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (lambda: row_of([3, 1], [0, 0]), "ids of candidates must be strictly ascending"),
        (lambda: row_of([3, V], [0, 0]), "within the vocabulary"),
        (lambda: row_of([3, 4], [0]), r"ids of shape \(2,\) and .* log weights of shape \(1,\)"),
        (lambda: Candidates([1, 2], np.zeros(2)), "numpy arrays"),
    ],
)
def test_ids_that_cannot_be_drawn_are_an_error(row, message):
    with pytest.raises(PluginError, match=message):
        check_candidates(row(), V)


def test_a_row_that_passed_is_checked_again_for_another_vocabulary():
    row = row_of([3, V - 1], [0, 0])
    check_candidates(row, V)
    check_candidates(row, V)
    with pytest.raises(PluginError, match="within the vocabulary"):
        check_candidates(row, V - 1)


@pytest.mark.parametrize("log_weights", [[0, NAN], [0, INF], [-INF, -INF]])
@pytest.mark.parametrize(
    "use",
    [lambda row: tempered(row, 1.0), best_candidate, lambda row: write_log_weights(row, np.zeros(V, np.float32))],
    ids=["tempered", "best", "written"],
)
def test_weights_that_are_no_distribution_are_an_error(use, log_weights):
    with pytest.raises(PluginError, match="NaN or plus infinity, or nothing finite"):
        use(row_of([3, 4], log_weights))
