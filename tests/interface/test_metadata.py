"""Metadata of prompts: what the caller says of a request reaches each drafter, on all levels."""

from __future__ import annotations

import pytest

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.step_loop import finished
from specdec_core.interface import ConfigError, SessionInfo
from specdec_core.interface.errors import ArgumentError
from tests.decoding.test_chat import wrapped
from tests.interface.test_remembering import WRAPPERS, folder  # noqa: F401
from tests.lossless import VOCAB, small_target
from tests.toys import CountingDrafter, Gamma

ANN, BOB = {"user": "ann"}, {"user": "bob"}


class Noting(CountingDrafter):
    """Notes the metadata of each session."""

    def __init__(self, vocab):
        super().__init__(vocab)
        self.seen = []

    def open(self, session):
        self.seen.append(list(session.metadata))
        return super().open(session)


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


@pytest.mark.parametrize("wrapper", ["chain in chain", "hierarchical", "translated"])
def test_drafters_around_others_hand_it_down(folder, wrapper):  # noqa: F811
    target, inner = small_target("cpu"), Noting(VOCAB)
    decoder_of(WRAPPERS[wrapper](inner, target, folder), target).generate(
        [2, 3, 5], max_new_tokens=4, metadata=[ANN]
    )
    assert inner.seen == [[ANN]]


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
