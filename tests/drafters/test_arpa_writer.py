"""Files that are written: read back the same, scored the same by KenLM, whole or not there."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from specdec_core.interface import ConfigError
from specdec_drafters.ngram import arpa_writer
from specdec_drafters.ngram.arpa import read_arpa
from specdec_drafters.ngram.arpa_writer import write_arpa
from specdec_drafters.ngram.kneser_ney import fit
from tests.drafters.ngram_models import (
    DATA,
    LN_10,
    arpa_entries,
    assert_same_entries,
    level_entries,
    sentences_of,
)

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


def test_the_same_model_gives_the_same_bytes_in_order(models, tmp_path, monkeypatch):
    model = models["small", 3]
    write_arpa(tmp_path / "a", model.levels, model.known)
    monkeypatch.setattr(arpa_writer, "LINES_AT_ONCE", 7)
    write_arpa(tmp_path / "b", model.levels, model.known)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    entries = arpa_entries(tmp_path / "a")
    assert_same_entries(entries, level_entries(model.levels, model.known), atol=1e-6)
    order = {"<s>": V, "</s>": V + 1, "<unk>": V + 2}
    keys = [[len(ngram), *(order[w] if w in order else int(w) for w in ngram)] for ngram in entries]
    assert keys == sorted(keys)
    fields = [len(line.split("\t")) for line in (tmp_path / "a").read_text().splitlines() if "\t" in line]
    assert fields == [3] * (182 + 319) + [2] * 357  # the highest order has no back-off weights


def test_what_was_read_from_lmplz_is_written_as_it_was(tmp_path):
    tables = read_arpa(DATA / "small.3.arpa", V)
    known = np.array([*(str(w) in (DATA / "small.txt").read_text().split() for w in range(V)), True, True, True])
    write_arpa(tmp_path / "again.arpa", tables.levels, known)
    assert_same_entries(arpa_entries(tmp_path / "again.arpa"), arpa_entries(DATA / "small.3.arpa"), atol=1e-6)


def oracle_of(path):
    kenlm = pytest.importorskip("kenlm", exc_type=ImportError)
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    return kenlm, kenlm.Model(str(path), config)


@pytest.mark.parametrize("which", [("tiny", 5), ("small", 3), ("tokens", 2), ("tokens", 4)])
def test_kenlm_scores_a_written_file_as_the_tables_do(models, which, tmp_path):
    model, path = models[which], tmp_path / "model.arpa"
    write_arpa(path, model.levels, model.known)
    kenlm, oracle = oracle_of(path)
    tables, draw = model.tables(), random.Random(0)
    tokens = np.concatenate(sentences_of(which[0])).tolist()
    contexts = []
    for _ in range(15):
        position, length = draw.randrange(len(tokens)), draw.randrange(7)
        contexts.append(tokens[position : position + length])
        contexts.append([draw.choice([*tokens[:50], 999]) for _ in range(length)])
    begins = [sentence[:2].tolist() for sentence in sentences_of(which[0])[:5]]
    for context in [*contexts, *begins, [999], [999, tokens[0]]]:
        state = kenlm.State()
        # A context as long as the model's memory does not reach back to the sentence's beginning.
        short = len(context) < tables.order - 1
        (oracle.BeginSentenceWrite if short else oracle.NullContextWrite)(state)
        for token in context:
            after = kenlm.State()
            oracle.BaseScore(state, str(token), after)
            state = after
        unused = kenlm.State()
        words = [*map(str, range(V)), "</s>", "<unk>"]
        expected = [oracle.BaseScore(state, word, unused) for word in words]
        row = tables.row(tables.context(context)) / LN_10
        np.testing.assert_allclose(np.delete(row, V), expected, atol=1e-5)


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


def test_a_failure_while_writing_leaves_what_was_there(models, tmp_path):
    model, path = models["small", 3], tmp_path / "model.arpa"
    path.write_text("what was there")

    def stop(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_arpa(path, model.levels, model.known, stop)
    assert [p.name for p in tmp_path.rglob("*")] == ["model.arpa"]
    assert path.read_text() == "what was there"
    write_arpa(path, model.levels, model.known)
    assert path.read_text().startswith("\\data\\\nngram 1=182\nngram 2=319\nngram 3=357\n\n\\1-grams:\n")


def test_what_cannot_be_written(models, tmp_path):
    model = models["tiny", 1]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_arpa(tmp_path / "file" / "model.arpa", model.levels, model.known)


def test_progress_counts_ngrams(models, tmp_path, monkeypatch):
    monkeypatch.setattr(arpa_writer, "LINES_AT_ONCE", 100)
    model, steps = models["small", 3], []
    write_arpa(tmp_path / "model.arpa", model.levels, model.known, steps.append)
    assert steps[-1] == sum(model.ngram_counts) == 858
    assert all(0 < after - before <= 100 for before, after in itertools.pairwise([0, *steps]))
