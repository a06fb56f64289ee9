"""Files that are written: read back the same, scored the same by KenLM, whole or not there."""

import numpy as np
import pytest

from specdec_drafters.ngram.arpa import read_arpa, write_arpa
from specdec_drafters.ngram.kneser_ney import fit
from tests.drafters.ngram_models import LN_10, sentences_of

V = 1000
MODELS = [("tiny", 1), ("tiny", 5), ("small", 3), ("tokens", 2), ("tokens", 4)]


@pytest.fixture(scope="module")
def models():
    return {(name, order): fit(sentences_of(name), V, order) for name, order in MODELS}


@pytest.mark.parametrize("which", MODELS)
def test_a_file_read_back_is_the_same_bit_for_bit(models, which, tmp_path):
    model, path = models[which], tmp_path / "model.arpa"
    write_arpa(path, model.levels, model.known)
    tables = read_arpa(path, V)
    assert tables.order == len(model.levels)
    for found, expected in zip(tables.levels, model.levels, strict=True):
        for field in ("words", "log_probability", "log_backoff", "first"):
            np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))
    in_memory = model.tables()
    tokens = np.concatenate(sentences_of(which[0])).tolist()
    for end in (0, 1, 2, 5, 40):
        for context in (tokens[:end], [*tokens[:end], 999], [999, *tokens[:end]]):
            assert tables.context(context) == in_memory.context(context)
            key = tables.context(context)
            np.testing.assert_array_equal(tables.row(key), in_memory.row(key))


def oracle_of(path):
    kenlm = pytest.importorskip("kenlm", exc_type=ImportError)
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    return kenlm, kenlm.Model(str(path), config)


def test_kenlm_scores_whole_sentences_as_the_tables_do(models, tmp_path):
    model, path = models["tokens", 4], tmp_path / "model.arpa"
    write_arpa(path, model.levels, model.known)
    _, oracle = oracle_of(path)
    tables = model.tables()
    for sentence in [*sentences_of("tokens")[:20], *sentences_of("small")[:5]]:
        scores = []
        for position, word in enumerate([*sentence.tolist(), V + 1]):
            context = tables.context(sentence[max(0, position - 3) : position].tolist())
            scores.append(tables.row(context)[word] / LN_10)
        text = " ".join(map(str, sentence))
        expected = [score for score, _, _ in oracle.full_scores(text, bos=True, eos=True)]
        np.testing.assert_allclose(scores, expected, atol=1e-5)
