"""Models in KenLM: scores of every kind of binary, the q that is recorded, the table of successors, and errors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Metaspace
from transformers import PreTrainedTokenizerFast

from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.interface import ConfigError, Outcome, Sparse, TargetInfo
from specdec_core.interface.settings import SamplingSettings
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.verification.distributions import dense
from specdec_drafters import settings as ngram_config
from specdec_drafters.ngram import kenlm_model
from specdec_drafters.ngram.arpa import read_arpa, write_arpa
from specdec_drafters.ngram.drafter import NgramDrafter
from specdec_drafters.ngram.kneser_ney import fit
from specdec_drafters.settings import NgramConfig
from tests.drafters.kenlm_binaries import BINARIES
from tests.drafters.ngram_models import DATA, LN_10, sentences_of
from tests.drafters.support import info_for
from tests.lossless import VOCAB
from tests.spelled import target_tokenizer

kenlm = pytest.importorskip("kenlm", exc_type=ImportError)

V = 1000


TEXT = [int(word) for word in (DATA / "small.txt").read_text().split()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with copies of all models, beside which tables may be written."""
    folder = tmp_path_factory.mktemp("models")
    for path in (DATA / "kenlm").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "small.3.arpa").write_bytes((DATA / "small.3.arpa").read_bytes())
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache is another folder in each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "specdec"


def drafter_from(folder, name, vocab_size=V, tokenizer=None, **settings):
    target = TargetInfo(vocab_size, folder=folder, tokenizer=tokenizer)
    return NgramDrafter(NgramConfig(kenlm=name, **settings), target)


def oracle(path, tokens):
    """Return ln p `[V]` in the state of the whole text, which KenLM carries along from its beginning."""
    config = kenlm.Config()
    config.show_progress, config.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    model, state = kenlm.Model(str(path), config), kenlm.State()
    model.BeginSentenceWrite(state)
    for token in tokens:
        after = kenlm.State()
        model.BaseScore(state, str(token), after)
        state = after
    unused = kenlm.State()
    return np.array([model.BaseScore(state, str(word), unused) for word in range(V)]) * LN_10


CONTEXTS = [[], [34], [62, 45, 699], [2, 619, 689, 13, 34, 46], TEXT[:9], [*TEXT[20:23], 998, *TEXT[23:25]], [999]]


@pytest.mark.parametrize("name", [*BINARIES, "small.3.arpa"])
def test_every_candidate_has_the_score_of_kenlm_after_the_whole_text(folder, name):
    model = drafter_from(folder, name, candidates=V).candidates
    listed = {int(word) for word in (DATA / "small.txt").read_text().split()}
    for tokens in CONTEXTS:
        row = model.after(model.context(tokens))
        assert set(row.ids.tolist()) == listed  # no id that the model scores as `<unk>`
        np.testing.assert_allclose(row.log_weights, oracle(folder / name, tokens)[row.ids], atol=1e-5)


# The q that is recorded is the one that was sampled from, whatever was drafted before.


def proposals(drafter, texts, budget, settings, seed=0):
    """Propose for each of several texts in one session, as if the core had replaced what was drafted before."""
    batch = len(budget)
    session = drafter.open(info_for(batch, V))
    streams = RowGenerators([seed + row for row in range(batch)])
    made = DraftRecorder(LogitsToProbs(settings), streams, batch, V, max(budget), "cpu")
    for rows in texts:
        made.start(rows, budget)
        proposal = session.propose(made)
        assert made.made(proposal)
        yield rows, proposal
        rejected = Outcome(budget, (0,) * batch, tuple((row[-1],) for row in rows), (False,) * batch, True)
        session.commit(rejected)


STEPS = [
    [[2, 619, 689], [34], TEXT[:12]],
    [[2, 619, 689, 13], [34, 62], [*TEXT[:12], 699]],  # other tokens than were drafted
    [[2, 619], [34, 62, 45], [*TEXT[:11], 13, 34]],  # rolled back behind what was committed
]


@pytest.mark.parametrize("name", ["small.3.quantized", "small.4.quantized", "small.5.probing", "small.6.trie"])
@pytest.mark.parametrize("most", [4, 50])
@pytest.mark.parametrize("settings", [SamplingSettings(), SamplingSettings(temperature=0.6)])
def test_q_is_kenlms_distribution_over_the_candidates_after_every_rejection(folder, name, most, settings):
    budget = (3, 1, 2)
    drafter = drafter_from(folder, name, candidates=most)
    for rows, proposal in proposals(drafter, STEPS, budget, settings):
        assert isinstance(proposal.q, Sparse)
        q = dense(proposal.q, proposal.tokens, V)
        for row, length in enumerate(budget):
            for position in range(length):
                tokens = [*rows[row], *proposal.tokens[row, :position].tolist()]
                kept = torch.nonzero(q[row, position])[:, 0]
                assert 1 <= len(kept) <= most
                scores = torch.from_numpy(oracle(folder / name, tokens))[kept]
                expected = (scores / settings.temperature).softmax(-1).float()
                torch.testing.assert_close(q[row, position, kept], expected, rtol=1e-4, atol=1e-6)


# The table of successors: found once, and kept.


@pytest.mark.parametrize("name", ["small.3.trie", "small.3.probing", "small.5.compressed"])
def test_the_table_has_the_bigrams_of_the_model(folder, name):
    model = fit(sentences_of("small"), V, BINARIES[name][0])
    tables, found = model.tables(), drafter_from(folder, name).candidates._successors
    for token in range(V):
        after = tables.drafted_successors((token,))
        expected = set() if after is None else set(after.ids.tolist())
        assert set(found.after(token).tolist()) == expected
        scores = tables.row((token,))[found.after(token)]
        assert (np.diff(scores) <= 1e-5).all()
    assert found.after(-1).tolist() == []


@pytest.fixture
def model(folder, tmp_path):
    """Return a function that makes a drafter from a model in a folder of this test, which has no table yet."""
    (tmp_path / "small.trie").write_bytes((folder / "small.3.trie").read_bytes())
    return lambda **settings: drafter_from(tmp_path, "small.trie", **settings)


def test_the_table_is_found_once_and_read_after_that(model, tmp_path, monkeypatch):
    first = model()
    assert len(list(tmp_path.glob("*.successors"))) == 1
    monkeypatch.setattr(kenlm_model, "find_successors", lambda *_: pytest.fail("found again"))
    second = model(candidates=3)
    for array in ("ids", "first"):
        np.testing.assert_array_equal(*(getattr(one.candidates._successors, array) for one in (first, second)))


# What followed the last token in the text.


def test_what_followed_in_the_text_is_a_candidate_though_the_table_misses_it(model, monkeypatch):
    monkeypatch.setattr(kenlm_model, "MOST_SUCCESSORS", 1)
    candidates = model(candidates=2).candidates
    last, seldom = 34, TEXT[40]
    before = candidates.after(candidates.context([last])).ids.tolist()
    assert seldom not in candidates.context([last, 5, last]).seen
    context = candidates.context([last, seldom, last])
    assert context.seen == (seldom,)
    assert len(before) <= 2
    everything = model(candidates=V).candidates
    assert everything.context([last, seldom, last]).seen == ()  # it is a candidate anyway
    three = model(candidates=3).candidates
    row = three.after(three.context([last, seldom, last]))
    scores = dict(zip(row.ids.tolist(), row.log_weights.tolist(), strict=True))
    assert len(scores) == 3
    assert candidates.context([last, 998, last]).seen == ()  # unknown to the model: never drafted
    assert context.last == last


# Words that are not token ids.


def words_model(folder, tokenizer, rows, order=3):
    """Write an ARPA file over words: token ids that a tokenizer spells."""
    names = {id_: word for word, id_ in tokenizer.get_vocab().items()}
    return arpa_of_words(folder, [[names[token] for token in row] for row in rows], order)


def arpa_of_words(folder, sentences, order=3):
    vocabulary = sorted({word for sentence in sentences for word in sentence})
    ids = [np.array([vocabulary.index(word) for word in sentence], dtype=np.int32) for sentence in sentences]
    model = fit(ids, len(vocabulary), order)
    write_arpa(folder / "ids.arpa", model.levels, model.known)
    lines = (folder / "ids.arpa").read_text().splitlines()
    for number, line in enumerate(lines):
        fields = line.split("\t")
        if len(fields) > 1:
            words = [vocabulary[int(word)] if word.isdigit() else word for word in fields[1].split()]
            lines[number] = "\t".join([fields[0], " ".join(words), *fields[2:]])
    (folder / "words.arpa").write_text("\n".join([*lines, ""]))
    return folder / "words.arpa"


def text_of(vocab_size, seed=0):
    generator = np.random.default_rng(seed)
    weights = 1 / np.arange(1, vocab_size + 1)
    return [generator.choice(vocab_size, 60, p=weights / weights.sum()).tolist() for _ in range(3)]


def test_words_may_be_the_tokens_of_the_tokenizer(tmp_path):
    words_model(tmp_path, target_tokenizer(), text_of(VOCAB))
    by_words = drafter_from(tmp_path, "words.arpa", VOCAB, target_tokenizer(), words="tokens")
    lines = [np.array(row, dtype=np.int32) for row in text_of(VOCAB)]
    model = fit(lines, VOCAB, 3)
    write_arpa(tmp_path / "numbers.arpa", model.levels, model.known)
    tables = read_arpa(tmp_path / "numbers.arpa", VOCAB)
    for tokens in ([0], [1, 2], [3, 0, 1], [5, 4, 3, 2]):
        row = by_words.candidates.after(by_words.candidates.context(tokens))
        np.testing.assert_allclose(row.log_weights, tables.row(tables.context(tokens))[row.ids], atol=1e-4)


def word_level_tokenizer(words):
    inner = Tokenizer(
        WordLevel({f"\u2581{word}": id_ for id_, word in enumerate([*words, "?"])}, unk_token="\u2581?")
    )
    inner.pre_tokenizer, inner.decoder = Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="\u2581?")


def test_words_of_text_are_tokens_without_their_blanks(tmp_path):
    arpa_of_words(tmp_path, [["the", "cat", "sat"], ["the", "dog", "sat"], ["a", "dog", "sat"]])
    tokenizer = word_level_tokenizer(["the", "cat", "dog", "sat", "a"])
    drafter = drafter_from(tmp_path, "words.arpa", 6, tokenizer, words="text")
    row = drafter.candidates.after(drafter.candidates.context(tokenizer("the")["input_ids"]))
    best = row.ids[np.argsort(-row.log_weights)[:2]]
    assert set(tokenizer.convert_ids_to_tokens(best.tolist())) == {"\u2581cat", "\u2581dog"}


def test_the_wrong_kind_of_words_is_told(tmp_path):
    words_model(tmp_path, target_tokenizer(), text_of(VOCAB))
    with pytest.raises(ConfigError, match=r"has 0 of .* 6 tokens .* 6 by words: tokens\. Set words: tokens"):
        drafter_from(tmp_path, "words.arpa", VOCAB, target_tokenizer())


def test_without_the_package_the_settings_say_what_to_do(monkeypatch):
    monkeypatch.setattr(ngram_config, "find_spec", lambda name: None)
    with pytest.raises(ValidationError, match=r"not installed: .*ARPA file .* as 'arpa'"):
        NgramConfig(kenlm=Path("model"))
