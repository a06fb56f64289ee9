"""Sentences are those of `messages.txt`; `python -m tests.golden` writes it again."""

from tests.golden import PATH, messages


def test_messages_are_those_of_the_golden_file():
    assert messages() == PATH.read_text("utf-8")
