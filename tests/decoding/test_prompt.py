"""Prompts are checked before decoding begins."""

import pytest

from specdec_core import Decoder, GenerationSettings
from specdec_core.decoding.prompt_ids import check_prompts
from specdec_core.interface.errors import PromptError
from specdec_core.models import wrap_model
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def targets():
    return {family: wrap_model(tiny_model(family), name=f"tiny-{family}") for family in ("gpt2", "bart", "t5")}


@pytest.mark.parametrize(("family", "longest"), [("gpt2", 255), ("bart", 256), ("t5", 300)])
def test_the_longest_prompt_is_decoded(targets, family, longest):
    prompt = [3] * longest
    check_prompts(targets[family], [prompt], ["long"])
    # A source takes no positions from the output.
    wanted = 1 if family == "gpt2" else 4
    settings = GenerationSettings(max_new_tokens=4, ignore_eos=True)
    assert len(Decoder(targets[family]).generate([prompt], settings).sequences[0].tokens) == wanted


@pytest.mark.parametrize(
    ("family", "length", "said"),
    [
        ("gpt2", 256, "prompt long has 256 tokens; tiny-gpt2 takes 256, and at least one must be left"),
        ("bart", 257, "the source of prompt long has 257 tokens; the encoder of tiny-bart takes 256. Shorten"),
    ],
)
def test_a_prompt_that_is_too_long_is_an_error(targets, family, length, said):
    with pytest.raises(PromptError, match=said):
        check_prompts(targets[family], [[3], [3] * length], ["short", "long"])
    with pytest.raises(PromptError, match=f"{length} tokens"):
        Decoder(targets[family]).generate([[3] * length])


def test_up_to_five_faults_are_reported_at_once(targets):
    prompts = ["a text", [3] * 300, [40], [], [3], [-1], [], []]
    with pytest.raises(PromptError) as caught:
        check_prompts(targets["gpt2"], prompts, [f"p{number}" for number in range(8)])
    assert [line[:9] for line in str(caught.value).splitlines()] == [
        *[f"prompt p{number}"[:9] for number in (0, 1, 2, 3, 5)],
        "2 more of",
    ]
    assert "2 more of 8 prompts are invalid." in str(caught.value)
