"""The n-gram drafter's rows as overlays: the same distribution as the row written out, and cheap to keep."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from specdec_core.decoding.drafting import DraftRecorder
from specdec_core.interface import Backoff, BestFirstTree, Dense, PointMass, SamplingSettings, TargetInfo
from specdec_core.sampling.backoff import backoff_argmax, write_log_weights
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.verification.distributions import dense
from specdec_drafters.ngram import tables as ngram_tables
from specdec_drafters.ngram.arpa import read_arpa
from specdec_drafters.ngram.config import NgramConfig
from specdec_drafters.ngram.drafter import NgramDrafter, _NgramSession
from specdec_drafters.ngram.kneser_ney import estimate
from tests.drafters.support import info_for, tree_request

DATA = Path(__file__).parent / "data"

# Some n-grams weigh less than what backing off would give, some have no suffix among the shorter ones, and
# '<unk>' follows contexts of two lengths; 4, 6 and 7 are not listed.
KATZ = """\\data\\
ngram 1=8
ngram 2=9
ngram 3=7

\\1-grams:
-0.6 <unk> -0.1
-99 <s> -0.3
-1.0 </s>
-0.5 0 0.4
-0.7 1 -0.4
-0.9 2 -99
-1.1 3
-0.8 5 -0.2

\\2-grams:
-2.5 0 0 -0.3
-0.4 0 1 0.2
-1.9 0 </s>
-0.3 1 2 -0.5
-0.7 1 <unk> -0.1
-0.2 2 3
-1.0 5 0 -0.2
-0.6 5 5
-0.35 <unk> 2 -0.2

\\3-grams:
-3.0 0 1 2
-0.2 0 1 0
-0.9 0 1 <unk>
-0.4 1 2 3
-0.5 1 2 1
-0.8 5 0 <unk>
-0.1 <unk> 2 0

\\end\\
"""


def katz(tmp_path, order=None):
    (tmp_path / "katz.arpa").write_text(KATZ)
    return read_arpa(tmp_path / "katz.arpa", 8, order)


def random_tables(order, vocab_size=9, seed=0):
    generator = np.random.default_rng(seed)
    weights = 1 / np.arange(1, vocab_size + 1)
    return estimate(
        [generator.choice(vocab_size, 300, p=weights / weights.sum()).astype(np.int32)], vocab_size, order
    )


def written(tables, context):
    out = np.empty(tables.vocab_size, dtype=np.float32)
    write_log_weights(tables.backoff_row(context), out)
    return out


def assert_equal_for_every_context(tables):
    vocab_size = tables.vocab_size
    for length in range(tables.order):
        for tokens in itertools.product(range(vocab_size), repeat=length):
            context = tables.context(tokens)
            expected = tables.row(context)[:vocab_size]
            np.testing.assert_allclose(written(tables, context), expected, rtol=1e-6, atol=1e-6)
            assert expected[backoff_argmax(tables.backoff_row(context))] >= expected.max() - 1e-5


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_an_overlay_of_an_estimated_model_is_its_row(order):
    assert_equal_for_every_context(random_tables(order))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_an_overlay_of_a_model_that_does_not_interpolate_is_its_row(tmp_path, order):
    assert_equal_for_every_context(katz(tmp_path, order))


def test_unlisted_ids_have_the_score_of_unk_where_it_follows_the_context(tmp_path):
    tables = katz(tmp_path)
    row = tables.backoff_row(tables.context([0, 1]))
    np.testing.assert_allclose(written(tables, (0, 1))[[4, 6, 7]], -0.9 * np.log(10), rtol=1e-5)
    assert row.ids.tolist() == [0, 2, 4, 6, 7]  # no special word among them
    assert tables.backoff_row((5,)).ids.tolist() == [0, 5]


def test_levels_are_not_written_to(tmp_path):
    for tables in (katz(tmp_path), random_tables(4)):
        before = [level.log_probability.copy() for level in tables.levels]
        for tokens in itertools.product(range(tables.vocab_size), repeat=tables.order - 1):
            tables.backoff_row(tables.context(tokens))
        for level, log_probability in zip(tables.levels, before, strict=True):
            np.testing.assert_array_equal(level.log_probability, log_probability)


def test_a_bigram_lists_what_the_level_holds_without_copying_it():
    tables = random_tables(2)
    row = tables.backoff_row((0,))
    assert np.shares_memory(row.ids, tables.levels[1].words)
    assert np.shares_memory(row.log_weights, tables.levels[1].log_probability)


def test_rows_are_cached_within_bounds_and_stay_right(monkeypatch):
    monkeypatch.setattr(ngram_tables, "CACHE_BYTES", 5000)
    tables = random_tables(3)
    contexts = list(itertools.product(range(9), repeat=2))
    first = {context: written(tables, context) for context in contexts}
    for context in reversed(contexts):
        np.testing.assert_array_equal(written(tables, context), first[context])
    assert 1 <= len(tables._cache) <= 5
    assert tables._cache_left >= 0
    assert tables.backoff_row(contexts[0]) is tables.backoff_row(contexts[0])


def recorder(settings, batch, vocab_size, budget, seed=0):
    streams = RowGenerators([seed + row for row in range(batch)])
    return DraftRecorder(LogitsToProbs(settings), streams, batch, vocab_size, max(budget), "cpu")


def propose(session, tokens, budget, settings, vocab_size, seed=0):
    made = recorder(settings, len(tokens), vocab_size, budget, seed)
    made.start(tokens, budget)
    proposal = session.propose(made)
    assert made.made(proposal)
    return proposal


CONTEXTS = [[2, 619, 689, 13, 34, 46], [34], [62, 45, 699]]


@pytest.mark.parametrize(("arpa", "order"), [("small.2.arpa", 1), ("small.2.arpa", 2), ("small.3.arpa", None)])
@pytest.mark.parametrize(
    ("settings", "form"),
    [
        (SamplingSettings(), Backoff),
        (SamplingSettings(temperature=0.6), Backoff),
        (SamplingSettings(temperature=0), PointMass),
        (SamplingSettings(top_k=4), Dense),
        (SamplingSettings(repetition_penalty=1.3), Dense),
    ],
)
def test_q_is_the_model_renormalised_and_standardised(arpa, order, settings, form):
    vocab_size, budget = 1000, (3, 1, 2)
    drafter = NgramDrafter(NgramConfig(arpa=arpa, order=order), TargetInfo(vocab_size, folder=DATA))
    proposal = propose(drafter.open(info_for(3, vocab_size)), CONTEXTS, budget, settings, vocab_size)
    assert isinstance(proposal.q, form)
    assert proposal.lengths == budget
    q = dense(proposal.q, proposal.tokens, vocab_size)
    for row, length in enumerate(budget):
        for place in range(length):
            prefix = [*CONTEXTS[row], *proposal.tokens[row, :place].tolist()]
            model = torch.from_numpy(drafter.tables.row(drafter.tables.context(prefix))[None, :vocab_size])
            expected = LogitsToProbs(settings)(model, [prefix])[0]
            torch.testing.assert_close(q[row, place], expected, rtol=1e-4, atol=1e-8)
            assert q[row, place, proposal.tokens[row, place]] > 0


@pytest.mark.parametrize("order", [1, 2, 3])
def test_drafts_have_the_frequencies_of_the_model(order):
    vocab_size, count = 9, 3000
    tables = random_tables(order)
    session = _NgramSession(tables)
    made = recorder(SamplingSettings(), 1, vocab_size, (2,))
    seen = np.zeros((vocab_size, vocab_size))
    for _ in range(count):
        made.start([[3, 1, 0]], (2,))
        first, second = session.propose(made).tokens[0].tolist()
        seen[first, second] += 1
    expected = np.zeros((vocab_size, vocab_size))
    for first in range(vocab_size):
        one = np.exp(tables.row(tables.context([3, 1, 0]))[:vocab_size].astype(float))
        two = np.exp(tables.row(tables.context([3, 1, 0, first]))[:vocab_size].astype(float))
        expected[first] = one[first] / one.sum() * two / two.sum() * count
    common = expected >= 5
    statistic = ((seen - expected) ** 2 / expected)[common].sum()
    assert statistic < common.sum() + 5 * (2 * common.sum()) ** 0.5


def test_a_row_whose_budget_is_spent_is_looked_up_no_more():
    tables = random_tables(2)
    asked = []
    overlay = tables.backoff_row
    tables.backoff_row = lambda context: asked.append(context) or overlay(context)
    proposal = propose(_NgramSession(tables), [[1], [2], [3]], (3, 0, 1), SamplingSettings(), 9)
    assert proposal.lengths == (3, 0, 1)
    assert sum(len(context) == 1 for context in asked) == 4  # each looks up the unigrams too


@pytest.mark.parametrize("order", [1, 2, 3])
def test_each_node_of_a_tree_is_drawn_from_the_row_of_its_path(order):
    settings = SamplingSettings(temperature=0.7, top_k=6)
    tables, to_probs = random_tables(order), LogitsToProbs(settings)
    rows, budget = [[1, 2, 3, 2], [4], [0, 0, 0]], (7, 0, 4)
    request = tree_request(rows, budget, BestFirstTree((3, 2, 2)), 9, sampling=settings)
    proposal = _NgramSession(tables).propose(request)
    assert proposal.lengths == budget
    for row, length in enumerate(budget):
        drawn = []
        for node in range(length):
            parent = above = int(proposal.parents[row, node])
            path = []
            while above >= 0:
                path.insert(0, int(proposal.tokens[row, above]))
                above = int(proposal.parents[row, above])
            scores = torch.from_numpy(written(tables, tables.context(rows[row] + path)))
            expected = to_probs(scores[None], None)[0]
            expected[[token for other, token in drawn if other == parent]] = 0  # its siblings
            drawn.append((parent, int(proposal.tokens[row, node])))
            q = proposal.q.probabilities[row, node]
            torch.testing.assert_close(q, expected / expected.sum(), atol=1e-6, rtol=1e-4)
