"""Reading and drafting of the datastore drafter; the search itself is tested in `test_retrieval.py`."""

import pytest

from specdec_core.interface import ConfigError, PointMass, TargetInfo
from specdec_drafters.datastore import DatastoreDrafter
from specdec_drafters.settings import DatastoreConfig
from tests.drafters.support import info_for, request_for, rows_of

V = 20


@pytest.fixture
def drafter_with(tmp_path):
    """Makes a drafter from a file of token ids."""

    def make(ids, **settings):
        (tmp_path / "ids").write_text(ids, encoding="utf-8")
        return DatastoreDrafter(DatastoreConfig(ids="ids", **settings), TargetInfo(V, folder=tmp_path))

    return make


def draft(drafter, tokens, budget):
    return rows_of(drafter.open(info_for(1, V)).propose(request_for([tokens], [budget])))[0]


def test_continues_the_longest_match_in_the_corpus_as_most_often(drafter_with):
    drafter = drafter_with("1 2 3 4 5\n9 2 3 6 7\n8 2 3 6 8\n")
    assert draft(drafter, [2, 3], 4) == [6, 7]
    assert draft(drafter, [1, 2, 3], 4) == [4, 5]
    assert draft(drafter, [5], 4) == []  # the end of a line
    assert draft(drafter, [7, 7], 4) == draft(drafter, [], 4) == []
    assert draft(drafter, [11, 12, 11], 4) == []  # the request itself is not searched


def test_a_draft_grows_with_the_match(drafter_with):
    corpus = "1 2 3 4 5 6 7 8"
    assert draft(drafter_with(corpus), [2], 4) == [3]
    assert draft(drafter_with(corpus), [1, 2, 3], 4) == [4, 5, 6]
    assert draft(drafter_with(corpus, max_spec_factor=4), [2], 4) == [3, 4, 5, 6]
    assert draft(drafter_with(corpus, max_match=1), [1, 2, 3], 4) == [4]


def test_a_tree_has_the_most_frequent_continuations(drafter_with):
    request = request_for([[1, 2], [5]], [4, 4])
    request.tree, request.depth = object(), (2, 2)
    drafter = drafter_with("1 2 3 4\n1 2 3 5\n1 2 6 7\n1 2 3 5\n")
    proposal = drafter.open(info_for(2, V)).propose(request)
    assert isinstance(proposal.q, PointMass)
    assert proposal.lengths == (4, 0)
    assert proposal.tokens[0].tolist() == [3, 5, 6, 4]
    assert proposal.parents[0].tolist() == [-1, 0, -1, 0]


def test_a_text_is_read_in_the_tokens_of_the_target(word_tokenizer, tmp_path):
    (tmp_path / "text").write_text("a b c d\n", encoding="utf-8")
    target = TargetInfo(9, tokenizer=word_tokenizer, folder=tmp_path)
    ids = word_tokenizer("a b c d")["input_ids"]
    assert draft(DatastoreDrafter(DatastoreConfig(text="text"), target), ids[:2], 2) == ids[2:]


def test_a_text_needs_a_tokenizer():
    with pytest.raises(ConfigError, match="'datastore' cannot use the text 'x': the target has no tokenizer"):
        DatastoreDrafter(DatastoreConfig(text="x"), TargetInfo(V))
