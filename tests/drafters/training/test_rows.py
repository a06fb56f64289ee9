"""Rows: every token of a text once, every row once a round, nothing of the padding."""

import torch

from specdec_drafters.training.rows import Batches, pad_rows
from specdec_drafters.training.sources import text_rows
from specdec_drafters.transformer import agreement


def test_windows_predict_every_token_once():
    documents = [[10, 11, 12, 13], [20, 21, 22, 23, 24, 25]]
    rows = text_rows(documents, length=4, begin=0)
    assert rows.tokens.tolist() == [[0, 10, 11, 12], [12, 13, 0, 20], [20, 21, 22, 23]]
    assert rows.tokens[rows.mask].tolist() == [10, 11, 12, 13, 0, 20, 21, 22, 23]
    assert not rows.mask[:, 0].any()


def test_no_window_from_too_little_text():
    assert len(text_rows([[1, 2, 3]], length=4, begin=None)) == 0
    assert len(text_rows([[1, 2, 3, 4]], length=4, begin=None)) == 1


def test_padding_and_prompts_are_not_predicted():
    rows = pad_rows([[5, 6, 7, 8], [9, 1]], given=[2, 0], sources=[[3], [3, 4]])
    assert rows.tokens.tolist() == [[5, 6, 7, 8], [9, 1, 0, 0]]
    assert rows.mask.tolist() == [[False, False, True, True], [False, True, False, False]]
    assert rows.sources.tolist() == [[3, 0], [3, 4]]
    assert rows.source_mask.tolist() == [[True, False], [True, True]]
    assert rows.positions == 3


def test_taking_rows_leaves_out_empty_columns():
    rows = pad_rows([[5, 6, 7, 8], [9, 1]], given=[1, 1], sources=[[3], [3, 4]])
    short = rows.take(torch.tensor([1]))
    assert short.tokens.tolist() == [[9, 1]]
    assert rows.take(slice(0, 1)).sources.tolist() == [[3]]


def test_parts_hold_all_rows_and_no_more_than_wanted():
    rows = pad_rows([[number] * 5 for number in range(7)], [1] * 7)
    parts = rows.split(positions=10)
    assert [len(part) for part in parts] == [2, 2, 2, 1]
    assert torch.cat([part.tokens for part in parts]).tolist() == rows.tokens.tolist()
    assert [len(part) for part in rows.split(positions=1)] == [1] * 7


def pools():
    return [pad_rows([[100 * pool + n] * 5 for n in range(size)], [1] * size) for pool, size in ((0, 7), (1, 3))]


def test_each_round_has_every_row_once_and_pools_share_evenly():
    batches = Batches(pools(), tokens=16, seed=1)
    steps = [batches.at(step) for step in range(21)]
    assert all([len(part) for part in batch] == [2, 2] for batch in steps)
    for pool, size in ((0, 7), (1, 3)):
        drawn = [int(first) for batch in steps for first in batch[pool].tokens[:, 0] % 100]
        rounds = [drawn[start : start + size] for start in range(0, len(drawn), size)]
        assert all(sorted(each) == list(range(size)) for each in rounds)
        assert len({tuple(each) for each in rounds}) > 1


def test_a_batch_is_the_same_whenever_it_is_asked_for():
    first, again = Batches(pools(), 16, seed=1), Batches(pools(), 16, seed=1)
    for step in (9, 0, 4):
        assert all(a.tokens.equal(b.tokens) for a, b in zip(first.at(step), again.at(step), strict=True))
    other = Batches(pools(), 16, seed=2)
    assert any(not first.at(step)[0].tokens.equal(other.at(step)[0].tokens) for step in range(5))


def test_agreement_is_the_mean_over_positions_with_an_error_over_rows():
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]]).log()
    q = torch.tensor([[0.5, 0.5], [0.4, 0.6], [0.6, 0.4]]).log()
    found = agreement([(p, q, torch.tensor([1, 2]))])
    # beta is 1, 0.5 and 0.6; the argmaxes agree in the first position only.
    assert abs(found["alpha"] - 0.7) < 1e-6
    assert abs(found["greedy_alpha"] - 1 / 3) < 1e-6
    # Residuals of the rows: 1 - 0.7 and 1.1 - 1.4; times R / (R - 1), over 3 positions.
    assert abs(found["alpha_error"] - (2 * (0.3**2 + 0.3**2)) ** 0.5 / 3) < 1e-6
    parts = [(p[:1], q[:1], torch.tensor([1])), (p[1:], q[1:], torch.tensor([2]))]
    assert agreement(parts) == found
    assert "alpha_error" not in agreement(parts[:1])
