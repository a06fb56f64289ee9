"""Prompts that the T5 target never saw, made from its training text."""

import numpy as np

from recipes.builtin_t5 import fresh, samples
from recipes.builtin_t5.vocabulary import Pair

FIRST = "The folder is made if it is missing, with all the folders that it stands in, and nothing is said."
SECOND = (
    "An error is raised where there is a file of that name already, or where the disk is full. It names the file."
)
BODY = f"{FIRST}\n\n{SECOND}"


def pairs():
    messages = ("Save the changes", "The file could not be opened", "Open", "No such user")
    return [
        Pair("summarize", fresh.SUMMARIZE + BODY, "Make a folder.", "train"),
        *(Pair("translate", fresh.TRANSLATE + message, "Deutsch", "train") for message in messages),
    ]


def test_parts_of_a_body_are_its_paragraphs_and_its_second_half():
    assert list(fresh.parts(BODY)) == [FIRST, SECOND], "its second half is one of them"
    assert list(fresh.parts(FIRST)) == [], "a body of one sentence has no parts"


def test_sentences_are_on_one_line_and_not_code():
    body = ">>> open('a') and then some more words here.\nThe lines of\na file are read. Short one."
    assert list(fresh.sentences_of(body)) == ["The lines of a file are read."]


def test_fresh_prompts_are_new_and_unique():
    made = fresh.fresh_prompts(pairs(), np.random.default_rng(0))
    known = {pair.prompt for pair in pairs()}
    for task, prefix in (("summarize", fresh.SUMMARIZE), ("translate", fresh.TRANSLATE)):
        assert made[task]
        assert len(set(made[task])) == len(made[task])
        assert not known & set(made[task])
        assert all(prompt.startswith(prefix) for prompt in made[task])
    assert fresh.TRANSLATE + "Make a folder." in made["translate"]
    assert made == fresh.fresh_prompts(pairs(), np.random.default_rng(0))


def test_answers_to_fresh_prompts_have_a_file_of_their_own():
    assert samples.file_name("train", "sampled") == "sampled"
    assert samples.file_name("fresh", "greedy") == "fresh_greedy"
