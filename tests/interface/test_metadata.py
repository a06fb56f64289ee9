"""Metadata of prompts: what the caller says of a request reaches each drafter, on all levels."""

import pytest

from specdec_core.decoding.batch_loop import finished
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError, SessionInfo
from specdec_core.interface.errors import ArgumentError
from tests.decoding.letters import wrapped
from tests.lossless import VOCAB, small_target
from tests.toys import Gamma, Noting

ANN, BOB = {"user": "ann"}, {"user": "bob"}


def decoder_of(drafter, target=None):
    return Decoder(target or small_target("cpu"), drafter, gamma=Gamma(2), temperature=0, strict=True)


@pytest.mark.filterwarnings("ignore:a tree was asked for")
def test_a_session_has_the_metadata_of_each_prompt():
    drafter = Noting(VOCAB)
    decoder, two = decoder_of(drafter), [[2, 3], [5]]
    decoder.generate(two, max_new_tokens=2, metadata=[ANN, None])
    finished(decoder.stream(two, max_new_tokens=2, metadata=BOB))
    decoder.generate(two, max_new_tokens=2)
    decoder.generate(two, max_new_tokens=2, beams=2, metadata=[ANN, BOB])
    assert drafter.seen == [[ANN, {}], [BOB, BOB], [{}, {}], [ANN, ANN, BOB, BOB]]


def test_each_turn_of_a_conversation_has_its_metadata():
    target = wrapped()
    drafter = Noting(target.vocab_size)
    chat = decoder_of(drafter, target).chat(metadata=ANN)
    for text in ("ab", "c"):
        chat.send(text, max_new_tokens=2)
    assert drafter.seen == [[ANN], [ANN]]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ([ANN], ConfigError, "1 metadata were given for 2 prompts"),
        ("ann", ArgumentError, "metadata='ann'"),
        (["a", ANN], ArgumentError, r"metadata=\['a', "),
    ],
)
def test_other_metadata_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        decoder_of(Noting(VOCAB)).generate([[2, 3], [5]], metadata=given)


def test_a_session_that_is_opened_directly_has_none():
    assert list(SessionInfo(2, VOCAB, 9, 2, "cpu").metadata) == [{}, {}]
