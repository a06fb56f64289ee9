"""The n-gram drafter's candidates and its q, held against the row written out."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.interface import BestFirstTree, Dense, PointMass, Sparse, TargetInfo
from specdec_core.interface.settings import SamplingSettings
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.verification.distributions import dense
from specdec_drafters.ngram import candidates as ngram_candidates
from specdec_drafters.ngram.arpa import read_arpa
from specdec_drafters.ngram.candidates import NgramCandidates
from specdec_drafters.ngram.drafter import NgramDrafter, _NgramSession
from specdec_drafters.ngram.kneser_ney import fit
from specdec_drafters.settings import NgramConfig
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
    text = generator.choice(vocab_size, 300, p=weights / weights.sum()).astype(np.int32)
    return fit([text], vocab_size, order).tables()


def contexts_of(tables):
    for length in range(tables.order):
        for tokens in itertools.product(range(tables.vocab_size), repeat=length):
            yield tables.context(tokens)


def assert_chosen(tables, context, kept, most):
    """Check the choice by its definition: what follows the longest context first; of equals, any may be kept."""
    allowed, left = set(), most
    while left:
        after = tables.drafted_successors(context) if context else None
        ids = set(range(tables.vocab_size)) if not context else set() if after is None else set(after.ids.tolist())
        allowed |= ids
        scores = tables.row(context)
        least = sorted(scores[list(ids)])[-left] if len(ids) > left else -np.inf
        assert len(ids & kept) >= min(left, len(ids))
        assert all(scores[token] <= least + 1e-6 for token in ids - kept)
        left -= min(left, len(ids)) if context else left
        context = context[1:]
    assert kept <= allowed


MODELS = [*((random_tables, order) for order in (1, 2, 3, 4)), *((katz, order) for order in (1, 2, 3))]


def model_of(make, order, tmp_path):
    return make(order) if make is random_tables else make(tmp_path, order)


@pytest.mark.parametrize("most", [1, 5, 100])
@pytest.mark.parametrize(("make", "order"), MODELS)
def test_candidates_are_what_follows_then_the_most_probable_with_the_models_weights(tmp_path, make, order, most):
    tables = model_of(make, order, tmp_path)
    candidates = NgramCandidates(tables, most)
    for context in contexts_of(tables):
        row, whole = candidates.after(context), tables.row(context)[: tables.vocab_size]
        np.testing.assert_allclose(row.log_weights, whole[row.ids], rtol=1e-6, atol=1e-6)
        assert_chosen(tables, context, set(row.ids.tolist()), most)
        assert (np.diff(row.ids) > 0).all()
        assert len(row.ids) <= most
        if most >= tables.vocab_size:
            assert row.ids.tolist() == list(range(tables.vocab_size))


def test_unlisted_ids_have_the_score_of_unk_where_it_follows_the_context(tmp_path):
    tables = katz(tmp_path)
    after = tables.drafted_successors((0, 1))
    assert after.ids.tolist() == [0, 2, 4, 6, 7]  # no special word among them
    np.testing.assert_allclose(after.log_probability[2:], -0.9 * np.log(10), rtol=1e-5)
    assert tables.drafted_successors((5,)).ids.tolist() == [0, 5]
    assert tables.drafted_successors((3, 3)) is None


def test_rows_are_cached_within_bounds_and_stay_right(monkeypatch):
    monkeypatch.setattr(ngram_candidates, "CACHE_BYTES", 5000)
    candidates = NgramCandidates(random_tables(3), 4)
    contexts = list(itertools.product(range(9), repeat=2))
    first = {context: candidates.after(context) for context in contexts}
    for context in reversed(contexts):
        np.testing.assert_array_equal(candidates.after(context).log_weights, first[context].log_weights)
    assert candidates.after.cache_info().currsize <= 4
    assert candidates.after(contexts[0]) is candidates.after(contexts[0])


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
@pytest.mark.parametrize("most", [3, 1000])
@pytest.mark.parametrize(
    ("settings", "form"),
    [
        (SamplingSettings(), Sparse),
        (SamplingSettings(temperature=0.6), Sparse),
        (SamplingSettings(temperature=0), PointMass),
        (SamplingSettings(top_k=4), Dense),
        (SamplingSettings(repetition_penalty=1.3), Dense),
    ],
)
def test_q_is_the_model_renormalized_over_the_candidates_and_standardized(arpa, order, settings, form, most):
    vocab_size, budget = 1000, (3, 1, 2)
    drafter = NgramDrafter(
        NgramConfig(arpa=arpa, order=order, candidates=most), TargetInfo(vocab_size, folder=DATA)
    )
    proposal = propose(drafter.open(info_for(3, vocab_size)), CONTEXTS, budget, settings, vocab_size)
    # If all tokens are candidates, a dense q is smaller.
    assert isinstance(proposal.q, Dense if form is Sparse and most == vocab_size else form)
    assert proposal.lengths == budget
    q = dense(proposal.q, proposal.tokens, vocab_size)
    for row, length in enumerate(budget):
        for position in range(length):
            prefix = [*CONTEXTS[row], *proposal.tokens[row, :position].tolist()]
            context = drafter.tables.context(prefix)
            model = torch.from_numpy(drafter.tables.row(context)[None, :vocab_size])
            kept = drafter.candidates.after(context).ids
            assert len(kept) <= most
            others = np.delete(np.arange(vocab_size), kept)
            model[0, others] = model[0, kept].min() - 20  # next to nothing; top-k cuts it off
            expected = LogitsToProbs(settings)(model, [prefix])[0]
            torch.testing.assert_close(q[row, position], expected, rtol=1e-4, atol=1e-7)
            assert q[row, position, proposal.tokens[row, position]] > 0
            if form is Sparse:
                assert q[row, position, others].sum() == 0


@pytest.mark.parametrize("order", [1, 2, 3])
def test_each_node_of_a_tree_is_drawn_from_the_row_of_its_path(order):
    settings = SamplingSettings(temperature=0.7, top_k=6)
    tables, to_probs = random_tables(order), LogitsToProbs(settings)
    rows, budget = [[1, 2, 3, 2], [4], [0, 0, 0]], (7, 0, 4)
    request = tree_request(rows, budget, BestFirstTree((3, 2, 2)), 9, sampling=settings)
    proposal = _NgramSession(NgramCandidates(tables, 100)).propose(request)
    assert proposal.lengths == budget
    for row, length in enumerate(budget):
        drawn = []
        for node in range(length):
            parent = above = int(proposal.parents[row, node])
            path = []
            while above >= 0:
                path.insert(0, int(proposal.tokens[row, above]))
                above = int(proposal.parents[row, above])
            scores = torch.from_numpy(tables.row(tables.context(rows[row] + path))[:9])
            expected = to_probs(scores[None], None)[0]
            expected[[token for other, token in drawn if other == parent]] = 0  # its siblings
            drawn.append((parent, int(proposal.tokens[row, node])))
            q = proposal.q.probabilities[row, node]
            torch.testing.assert_close(q, expected / expected.sum(), atol=1e-6, rtol=1e-4)
