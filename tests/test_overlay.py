"""Drawing from a few ids on top of a background, held against the row written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from specdec_core.border import Background, OverlayRow
from specdec_core.errors import PluginError
from specdec_core.overlay import best, row_at, write_log_weights
from specdec_core.randomness import LARGEST_UNIFORM

V = 12
EDGES = (0.0, 2**-53, 0.5, LARGEST_UNIFORM)


def overlay_row(ids, log_weights, log_scale=0.0, background=None):
    if background is None:
        background = Background(np.log(np.arange(1, V + 1, dtype=np.float32)))
    return OverlayRow(background, np.array(ids, np.int32), np.array(log_weights, np.float32), log_scale)


ROWS = {
    "some listed": overlay_row([2, 3, 7], [0.5, -1.0, 1.5], -0.7),
    "none listed": overlay_row([], []),
    "first and last listed": overlay_row([0, 11], [1.0, 2.0], -0.2),
    "neighbours at both ends": overlay_row([0, 1, 10, 11], [0.1, 0.2, 0.3, 0.4], 0.3),
    "all listed": overlay_row(range(V), np.linspace(-2, 2, V), 0.5),
    "all but one listed": overlay_row([n for n in range(V) if n != 5], np.zeros(V - 1), -1.0),
    "listed less than the background gives": overlay_row([4, 11], [-3, -4], 0.4),
    "nothing beside the listed": overlay_row([1, 6], [0.0, 1.0], -math.inf),
    "listed with no weight": overlay_row([0, 6], [-math.inf, 0.3], -1.0),
    "a background with gaps": overlay_row(
        [3, 9], [0.0, 1.0], 0.5, Background(np.where(np.arange(V) % 3 == 1, -np.inf, 0.2).astype(np.float32))
    ),
    "far from scale 1": overlay_row([2, 8], [500.0, 499.0], 497.0),
}


def written(row):
    out = np.empty(V, dtype=np.float32)
    write_log_weights(row, out)
    return out


def softmax(row, temperature):
    scores = written(row).astype(np.float64) / temperature
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def test_writing_out_puts_the_ids_over_the_scaled_background():
    row = overlay_row([1, 4], [9.0, -9.0], 0.5)
    expected = np.log(np.arange(1, V + 1)) + 0.5
    expected[[1, 4]] = 9.0, -9.0
    np.testing.assert_allclose(written(row), expected, rtol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("name", ROWS)
def test_q_is_the_softmax_of_the_row_written_out(name, temperature):
    at, expected = row_at(ROWS[name], temperature), softmax(ROWS[name], temperature)
    q = np.empty(V, dtype=np.float32)
    at.write(q)
    np.testing.assert_allclose(q, expected, rtol=5e-5, atol=1e-12)
    np.testing.assert_array_equal([at.density(token) for token in range(V)], q)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("name", ROWS)
def test_evenly_spread_numbers_draw_each_token_as_often_as_q_says(name, temperature):
    count = 4000
    at, expected = row_at(ROWS[name], temperature), softmax(ROWS[name], temperature)
    drawn = [at.draw((n + 0.5) / count) for n in range(count)]
    seen = np.bincount([token for token, _ in drawn], minlength=V)
    # By inversion each token has at most three intervals of numbers, each right to one part in `count`.
    np.testing.assert_allclose(seen / count, expected, atol=3 / count)
    assert all(q == at.density(token) for token, q in drawn)


def test_random_rows_by_chi_square():
    generator = np.random.default_rng(5)
    background = Background(generator.normal(size=V).astype(np.float32))
    for _ in range(20):
        ids = np.flatnonzero(generator.random(V) < generator.random())
        row = overlay_row(ids, generator.normal(size=len(ids)) + 1, generator.normal(), background)
        at = row_at(row, 0.8)
        seen = np.bincount([at.draw(u)[0] for u in generator.random(5000)], minlength=V)
        assert chisquare(seen, softmax(row, 0.8) * 5000).pvalue > 1e-5


@pytest.mark.parametrize("name", ROWS)
def test_numbers_at_the_edges_draw_nothing_of_q_zero(name):
    row = ROWS[name]
    at = row_at(row, 1.0)
    boundaries = np.concatenate([np.cumsum(softmax(row, 1.0)), np.cumsum(at.probabilities, dtype=np.float64)])
    near = [x + d for x in boundaries for d in (-(2**-50), -(2**-53), 0.0, 2**-53, 2**-50)]
    for uniform in [*EDGES, *(u for u in near if 0 <= u <= LARGEST_UNIFORM)]:
        token, q = at.draw(uniform)
        assert q > 0
        assert at.density(token) == q
        assert softmax(row, 1.0)[token] > 0


def test_rounding_that_leads_to_a_listed_id_or_beyond_the_last_is_made_good():
    at = row_at(ROWS["neighbours at both ends"], 1.0)
    for place in (0.0, 1e-300, at.background.total, 2 * at.background.total):
        assert 2 <= at._from_background(place) <= 9
    assert [at._nearest(token) for token in (0, 1, 5, 10, 12)] == [2, 2, 5, 9, 9]
    everything = row_at(ROWS["all listed"], 1.0)
    assert everything._nearest(4) == 11  # no other id is left: the one with the largest q


def test_what_float32_cannot_hold_is_not_drawn():
    background = Background(np.array([-60.0] + [0.0] * (V - 1), np.float32))
    row = overlay_row([1, 2], [-120.0, 100.0], 0.0, background)
    for uniform in EDGES:
        assert row_at(row, 1.0).draw(uniform) == (2, 1.0)


@pytest.mark.parametrize("name", ROWS)
def test_the_best_is_the_argmax_of_the_row_written_out(name):
    assert best(ROWS[name]) == written(ROWS[name]).argmax()


def test_the_first_of_equals_is_best():
    flat = Background(np.zeros(V, dtype=np.float32))
    assert best(overlay_row([3], [0.0], 0.0, flat)) == 0
    assert best(overlay_row([0, 1], [-1.0, 0.0], 0.0, flat)) == 1
    assert best(overlay_row([0, 1], [-1.0, -2.0], 0.0, flat)) == 2
    assert best(overlay_row([5, 6], [2.0, 2.0], 0.0, flat)) == 5
    assert best(overlay_row([0, 1, 2], [-1.0, -1.0, -1.0], -2.0, flat)) == 0


def test_random_rows_have_the_same_best():
    generator = np.random.default_rng(6)
    for _ in range(300):
        background = Background(generator.integers(0, 4, V).astype(np.float32))
        ids = np.flatnonzero(generator.random(V) < generator.random())
        row = overlay_row(ids, generator.integers(0, 5, len(ids)), int(generator.integers(-1, 2)), background)
        assert best(row) == written(row).argmax()


def test_what_was_computed_is_kept_for_the_last_temperatures():
    row = overlay_row([1], [0.0])
    assert row_at(row, 0.5) is row_at(row, 0.5)
    first = row_at(row, 0.5)
    for temperature in (0.6, 0.7, 0.8):
        row_at(row, temperature)
    assert row_at(row, 0.5) is not first
    best(row)
    assert len(row.prepared) <= 4
    assert len(row.background.prepared) <= 4


def test_a_background_is_moved_to_a_device_once():
    background = row_at(overlay_row([1], [0.0]), 1.0).background
    device = torch.device("cpu")
    assert background.tensor(device) is background.tensor(device)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (lambda: overlay_row([3, 1], [0, 0]), "ids must be ascending"),
        (lambda: overlay_row([3, 3], [0, 0]), "each once"),
        (lambda: overlay_row([-1, 3], [0, 0]), r"within the vocabulary \(0 to 11\)"),
        (lambda: overlay_row([3, V], [0, 0]), "within the vocabulary"),
        (lambda: overlay_row([3, 4], [0]), r"ids of shape \(2,\) and .* log weights of shape \(1,\)"),
        (lambda: overlay_row([3, 4], [0, NAN]), "hold NaN"),
        (lambda: overlay_row([3, 4], [0, INF]), "plus infinity"),
        (lambda: overlay_row([3], [-INF], -INF), "nothing finite"),
        (lambda: overlay_row([3], [0], NAN), "hold NaN"),
        (lambda: overlay_row([3], [0], 0, Background(np.full(V, -INF, np.float32))), "no finite log weight"),
        (lambda: overlay_row([3], [0], 0, Background(np.full(V, NAN, np.float32))), "holds NaN"),
    ],
)
def test_rows_that_are_no_distribution_are_refused(row, message):
    with pytest.raises(PluginError, match=message):
        row_at(row(), 1.0)


def test_a_listed_nan_has_no_best():
    with pytest.raises(PluginError, match="hold NaN"):
        best(overlay_row([3, 4], [0, NAN]))
