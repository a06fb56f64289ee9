"""Text between two tokenizers: the texts of tokens, those that are shared, and a text in other tokens."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from specdec_core.models import load_vocabulary
from specdec_drafters.translated.drafter import BLOCK, Retokenized, Retokenizer
from specdec_drafters.translated.shared import shared_tokens
from specdec_drafters.translated.spelling import spelling_of
from tests.spelled import other_tokenizer, target_tokenizer


def spellings(*tokenizers):
    return [spelling_of(one, len(one), "a") for one in tokenizers]


@pytest.fixture(scope="module")
def code():
    return load_vocabulary("builtin:target")[0]


@pytest.fixture(scope="module")
def words():
    return load_vocabulary("builtin:t5-target")[0]


TEXT = (
    'def grüße(name: str) -> str:\n    """Return the \'largest\' value — 3,141 times 🙂."""\n'
    "    values = [x ** 2 for x in range(1000)]\n    return f\"{name}: {values[-1]!r}\" if name else ''\n\n"
) * 6


def read(retokenizer, tokens, steps):
    text = Retokenized(retokenizer)
    for end in [*steps, len(tokens)]:
        text.read(tokens[:end])
    return text


@pytest.mark.parametrize("direction", ["code to words", "words to code"])
def test_the_drafter_reads_the_text_as_its_own_tokenizer_splits_it(code, words, direction):
    tokenizers = (code, words) if direction == "code to words" else (words, code)
    target, drafter = spellings(*tokenizers)
    tokens = tokenizers[0](TEXT, add_special_tokens=False)["input_ids"]
    text = read(Retokenizer(target, drafter), tokens, [])
    assert len(tokens) > 4 * BLOCK  # in several blocks
    assert text.ids == tokenizers[1](TEXT, add_special_tokens=False)["input_ids"]
    assert text.sound


def test_what_it_reads_depends_on_the_committed_text_alone(code, words):
    target, drafter = spellings(code, words)
    how = Retokenizer(target, drafter)
    tokens = code(TEXT)["input_ids"]
    chooser = random.Random(1)
    text = Retokenized(how)
    told: list[int] = []
    for _ in range(150):
        end = chooser.randrange(len(tokens) + 1)
        text.rollback(end)
        end = min(len(tokens), end + chooser.randrange(4))
        text.read(tokens[:end])
        assert text.ids == read(how, tokens[:end], []).ids
        assert told[: text.unchanged] == text.ids[: text.unchanged]
        told = list(text.ids)
        text.unchanged = len(told)


def test_a_character_of_several_tokens_is_read_as_bytes_until_it_is_complete(code, words):
    target, drafter = spellings(code, words)
    how = Retokenizer(target, drafter)
    tokens = code("x = '🙂'")["input_ids"]
    halves = [end for end in range(len(tokens)) if "\ufffd" in code.decode(tokens[:end])]
    assert len(halves) >= 2
    for end in halves:
        text = read(how, tokens[:end], [])
        assert text.sound
        assert b"".join(drafter.texts[token] for token in text.ids) == b" " + b"".join(
            target.texts[token] for token in tokens[:end]
        )
    assert read(how, tokens, halves).ids == words("x = '🙂'", add_special_tokens=False)["input_ids"]


def test_without_bytes_there_is_no_draft_within_a_character(code):
    letters = spellings(other_tokenizer())[0]
    how = Retokenizer(spellings(code)[0], letters)
    tokens = code("abc🙂")["input_ids"]
    assert not read(how, tokens[:-1], []).sound


def bracketed(begin, end, **more):
    """Return a tokenizer of letters that puts a token before a text."""
    pieces = [begin, end, *"abc"]
    inner = Tokenizer(models.BPE({piece: token for token, piece in enumerate(pieces)}, []))
    inner.decoder = decoders.Fuse()
    inner.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=begin, eos_token=end, **more)


def test_special_tokens_are_paired_by_their_role():
    one, other = bracketed("<s>", "</s>"), bracketed("<begin>", "<end>")
    target, drafter = spellings(one, other)
    assert shared_tokens(target, drafter).pairs == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}
    how = Retokenizer(target, drafter)
    assert read(how, [0, 2, 3, 1, 4], []).ids == [0, 2, 3, 1, 4]  # one beginning, not two
    assert read(how, [2, 3], []).ids == [0, 2, 3]  # its own beginning, where the target has none
    bare = spellings(other_tokenizer())[0]
    assert read(Retokenizer(target, bare), [0, 2, 3, 1, 4], []).ids == [3, 0]


def test_a_text_that_looks_like_a_special_token_is_text():
    one = bracketed("c", "</s>")
    (spelled,) = spellings(one)
    assert spelled.encode("ab") == [2, 3]
    assert 0 not in spelled.encode("abc")


def spaced():
    """Return a tokenizer of SentencePiece's kind."""
    pieces = ["\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"]
    inner = Tokenizer(
        models.BPE({piece: n for n, piece in enumerate(pieces)}, [("a", "b"), ("\u2581", "ab"), ("\u2581", "a")])
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    inner.decoder = decoders.Metaspace(prepend_scheme="always")
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def test_the_space_before_a_text_is_none_of_it():
    letters, words = spellings(other_tokenizer(), spaced())
    text = read(Retokenizer(letters, words), [3, 3], [])
    assert [words.texts[token] for token in text.ids] == [b" ab", b"ab"]
    text = read(Retokenizer(words, letters), [5, 4, 1], [])
    assert [letters.texts[token] for token in text.ids] == [b"ab", b"ab", b"a"]


@pytest.mark.parametrize(
    ("committed", "draft", "expected"),
    [
        ([2, 3], [5], [5]),  # abc + ca
        ([2], [0, 5], [3, 5]),  # ab + c ca: the target splits what comes after its own tokens
        ([1], [0, 3], [3, 2]),  # b + c ab: bc would be one token, but b stands
        ([2, 3], [4, 6], [2, 3, 3, 2]),  # texts of tokens that are not shared
    ],
)
def test_a_text_is_split_where_the_committed_text_ends(committed, draft, expected):
    how = Retokenizer(*spellings(target_tokenizer(), other_tokenizer()))
    assert how.split(read(how, committed, []), committed, draft) == expected


def test_a_token_is_the_same_in_both_vocabularies(code, words):
    target, drafter = spellings(code, words)
    shared = shared_tokens(target, drafter)
    assert len(set(shared.pairs.values())) == len(shared.pairs) > 1000
    for own, targets in shared.pairs.items():
        if drafter.texts[own] is not None:
            assert drafter.texts[own] == target.texts[targets]
    assert code.eos_token_id == shared.pairs[words.eos_token_id]
