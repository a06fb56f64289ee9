"""Conversations: turns equal those of transformers, and the cache is kept where the text is unchanged."""

from contextlib import contextmanager
from random import Random

import pytest

from specdec_core.decoding.batch_loop import finished
from specdec_core.decoding.chat import Conversations
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import BestFirstTree, ConfigError
from specdec_core.interface.errors import PromptError
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models import with_exact_shapes, wrap_model
from specdec_core.models.chat_template import Turn
from specdec_core.models.prefix_cache import PrefixCache
from specdec_core.sampling.generators import row_seed
from tests.decoding.letters import PLAIN, VOCAB, library_answers, tiny_tokenizer, wrapped
from tests.pairwise import some
from tests.tiny import DECODER_ONLY, tiny_model
from tests.toys import Gamma, TableDrafter

THOUGHTLESS = PLAIN.replace("{{ one.content }}", "{{ one.content.split('c')[-1] }}")
"""A template that forgets the thoughts of earlier answers: all before the last c."""
SAID = ("abcab", "b", "acca", "cbbc", "aa")
LENGTH = 9


@contextmanager
def counting(target):
    """Counts the tokens of each forward pass."""
    read = []
    hook = target.model.register_forward_pre_hook(
        lambda _, __, keywords: read.append(keywords["input_ids"].numel()), with_kwargs=True
    )
    try:
        yield read
    finally:
        hook.remove()


@pytest.mark.parametrize("template", [PLAIN, THOUGHTLESS], ids=["plain", "thoughtless"])
@pytest.mark.parametrize("family", some(DECODER_ONLY, 1))
def test_five_greedy_turns_equal_those_of_generate(family, template):
    target = wrapped(family, template)
    expected, prompts = library_answers(target, SAID, LENGTH, system="bb")
    tree = BestFirstTree((3, 2, 2))
    for drafter, gamma in ((None, None), (TableDrafter(VOCAB), 3), (TableDrafter(VOCAB), Gamma(7, tree=tree))):
        chat = Decoder(target, drafter, gamma=gamma, temperature=0, strict=True).chat("bb")
        found = [chat.send(text, max_new_tokens=LENGTH) for text in SAID]
        assert [list(one.tokens) for one in found] == expected
        assert [list(one[0].prompt) for one in found] == prompts
        assert [one["role"] for one in chat.messages] == ["system", *["user", "assistant"] * len(SAID)]


def test_only_new_tokens_are_read():
    target = wrapped()
    expected, prompts = library_answers(target, SAID, LENGTH)
    reused = [0]
    for answer, earlier, later in zip(expected, prompts, prompts[1:], strict=False):
        text = [*earlier, *answer[:-1]]  # the last token of an answer is not read before the next turn
        reused.append(next(n for n in range(len(later)) if text[n : n + 1] != later[n : n + 1]))
    chat = Decoder(target, temperature=0).chat()
    for turn, (text, prompt, kept) in enumerate(zip(SAID, prompts, reused, strict=True)):
        with counting(target) as read:
            result = chat.send(text, max_new_tokens=LENGTH)
        assert list(result.tokens) == expected[turn]
        assert chat.reused == kept
        assert read == [len(prompt) - kept, *[1] * (len(result.tokens) - 1)]
        assert len(read) == result.metrics.target_calls
    assert sum(reused) > sum(map(len, prompts)) / 2
    chat.close()
    with counting(target) as read:
        result = chat.send("a", max_new_tokens=1)
    assert read == [len(result[0].prompt)]


def test_earlier_turns_that_a_template_rewrites_are_read_again():
    target = wrapped(template=THOUGHTLESS)
    expected, prompts = library_answers(target, SAID, LENGTH)
    chat = Decoder(target, temperature=0).chat()
    cut = 0
    for turn, text in enumerate(SAID):
        assert list(chat.send(text, max_new_tokens=LENGTH).tokens) == expected[turn]
        cut += turn > 0 and 0 < chat.reused <= len(prompts[turn - 1])
    assert cut


def test_sampled_turns_equal_fresh_ones_with_the_same_seeds():
    target = wrapped()
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=3, temperature=1.5, strict=True)
    chat = decoder.chat()
    texts = []
    for turn, text in enumerate(SAID):
        texts.append(chat.send(text, max_new_tokens=LENGTH, seed=5)[0])
        fresh = decoder.generate([texts[-1].prompt], max_new_tokens=LENGTH, seeds=[row_seed(5, turn)])
        assert texts[-1].tokens == fresh.tokens
    assert len({one.tokens for one in texts}) == len(SAID)


@pytest.mark.parametrize("kind", ["ragged", "row by row", "exact shapes"])
def test_conversations_side_by_side_end_one_after_the_other(kind, monkeypatch):
    monkeypatch.setattr("specdec_core.models.run.cache.CHUNK", 16)  # so that buffers grow
    target = wrapped()
    said = [SAID[:1], SAID[1:], SAID[3:]]
    expected = [library_answers(target, texts, LENGTH)[0] for texts in said]
    if kind != "ragged":
        target = target.row_by_row() if kind == "row by row" else with_exact_shapes(target, 5)
    talk = Conversations(Decoder(target, TableDrafter(VOCAB), gamma=3, temperature=0, strict=True), 3)
    found = [[], [], []]
    settings = GenerationSettings(max_new_tokens=LENGTH)
    for turn in range(4):
        going = [number for number in range(3) if turn < len(said[number])]
        turns = [_turn(said[number][turn]) if number in going else None for number in range(3)]
        result = finished(talk.stream(turns, settings, seeds=[0] * len(going)))
        assert turn == 0 or min(talk.cache.reused) > 0
        for number, one in zip(going, result, strict=True):
            found[number].append(list(one.tokens))
    assert found == expected


def _turn(text):
    return Turn(({"role": "user", "content": text},), "turn")


def test_any_prompts_after_each_other_equal_fresh_ones(monkeypatch):
    monkeypatch.setattr("specdec_core.models.run.cache.CHUNK", 8)
    target = wrap_model(tiny_model("llama"))
    random = Random(0)
    cache, texts = PrefixCache(), [[3]]
    decoder = Decoder(target, TableDrafter(40), gamma=3, temperature=0, strict=True)
    reused = 0
    for _ in range(12):
        prompts = [_continued(random.choice(texts), random) for _ in range(random.randint(1, 4))]
        result = decoder.generate(prompts, max_new_tokens=6, ignore_eos=True, cache=cache)
        for prompt, one in zip(prompts, result, strict=True):
            alone = decoder.generate([prompt], max_new_tokens=6, ignore_eos=True)
            assert one.tokens == alone.tokens
        reused += sum(cache.reused)
        texts = [[*one.prompt, *one.tokens] for one in result]
    assert reused > 100


def _continued(text, random):
    kept = text[: random.randint(1, len(text))]
    return [*kept, *(random.randrange(2, 40) for _ in range(random.randint(0, 5)))]


class Spy(TableDrafter):
    """Keeps the text of each session's first draft."""

    def open(self, session):
        self.seen.append(None)
        return super().open(session)

    def logits(self, prefix):
        self.seen[-1] = self.seen[-1] or tuple(prefix)
        return super().logits(prefix)


def test_drafters_see_the_whole_conversation():
    spy = Spy(VOCAB)
    spy.seen = []
    chat = Decoder(wrapped(), spy, gamma=2, temperature=0, strict=True).chat("bb")
    prompts = [chat.send(text, max_new_tokens=LENGTH)[0].prompt for text in SAID[:3]]
    assert spy.seen == prompts


def test_a_turn_that_fails_or_is_left_changes_nothing():
    target = wrapped()
    expected, _ = library_answers(target, SAID[:2], LENGTH)
    chat = Decoder(target, temperature=0).chat()
    chat.send(SAID[0], max_new_tokens=LENGTH)
    before = chat.messages
    steps = chat.stream(SAID[1], max_new_tokens=LENGTH)
    next(steps)
    next(steps)
    steps.close()
    with pytest.raises(PromptError, match=r"turn 2 of the chat has .* tokens"):
        chat.send("abc" * 300)
    assert chat.messages == before
    assert list(chat.send(SAID[1], max_new_tokens=LENGTH).tokens) == expected[1]
    assert chat.reused == 0


def test_prompts_of_a_conversation_are_decoded_as_they_are():
    target = wrapped()
    decoder = Decoder(target, temperature=0)
    talk = Conversations(decoder, 2)
    settings = GenerationSettings(max_new_tokens=LENGTH)
    result = finished(talk.stream(["abc", [2, 3]], settings, seeds=[0, 0]))
    assert result.sequences == decoder.generate(["abc", [2, 3]], settings).sequences
    assert talk.histories == [(), ()]


def test_what_cannot_converse():
    with pytest.raises(
        PromptError, match=r"turn 1 of the chat is a chat, but the tokenizer of .* no chat template"
    ):
        Decoder(wrapped(template=None)).chat().send("a")
    with pytest.raises(PromptError, match="no tokenizer"):
        Decoder(wrap_model(tiny_model("llama"))).chat(template=PLAIN).send("a")
    source = Decoder(wrap_model(tiny_model("t5"), tiny_tokenizer()), temperature=0)
    with pytest.raises(ConfigError, match="is an encoder-decoder model, which answers a source"):
        source.chat()
    with pytest.raises(ConfigError, match="reads its prompts with an encoder"):
        source.generate([[2, 3]], cache=PrefixCache())
    with pytest.raises(ConfigError, match="beams do not keep one"):
        Decoder(wrapped(), temperature=0).generate([[2, 3]], cache=PrefixCache(), beams=2)
