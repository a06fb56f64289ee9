"""Drafters that remember earlier requests, replayed: each text comes after those before it, and after no other."""

from dataclasses import replace

import numpy as np
import pytest

from specdec_core.costs.step_costs import StepCosts
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.offline.record.format import TextLine
from specdec_core.offline.replay.drafter_replay import DrafterReplay
from specdec_core.offline.replay.replayed_metrics import expected_metrics
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.testing.harness.replaying import memory_record, recorded_texts
from specdec_core.testing.harness.toys import Gamma
from tests.offline.replay.support import PROMPT, small_target
from tests.toys import Noting, RememberingDrafter

GREEDY = SamplingSettings(temperature=0)
SETTINGS = GenerationSettings(max_new_tokens=12, ignore_eos=True)
PROMPTS = [list(PROMPT), [3, 5], [4, 2, 4], [5, 5], list(PROMPT)]


@pytest.fixture(scope="module")
def target():
    return small_target(6)


@pytest.fixture(scope="module")
def recorded(target):
    """Greedy texts of several prompts, the last of which is the first again."""
    decoder = Decoder(target, sampling=GREEDY)
    texts = []
    for number, prompt in enumerate(PROMPTS):
        row = decoder.generate([prompt], SETTINGS).sequences[0].tokens
        [text] = recorded_texts(target, prompt, [row], GREEDY, 12)
        texts.append(replace(text, number=number))
    return memory_record(target, texts, GREEDY, SETTINGS)


def replay(target, recorded, drafter, chosen=None, **options):
    record, part = recorded
    return DrafterReplay(record, part, drafter, max_gamma=3, texts=chosen, target=target, **options)


def test_a_drafter_is_told_the_metadata_of_recorded_prompts(target, recorded):
    record, part = recorded
    prompt = PromptText("a", None, metadata={"user": "ann", "age": 3})
    line = TextLine.of(prompt, 0, 0, part.texts[0], GREEDY).model_dump_json(exclude_defaults=True)
    read = TextLine.model_validate_json(line)
    assert read.prompt_text().metadata == prompt.metadata
    drafter = Noting(6)
    replay(target, (record, replace(part, texts=(read.text(),))), drafter).acceptance()
    assert drafter.seen == [[prompt.metadata]]


@pytest.mark.parametrize("by_budget", [False, True])
def test_a_replay_counts_what_decoding_in_the_same_order_counts(target, recorded, by_budget):
    drafter = RememberingDrafter(6)
    drafter.drafts_by_budget = by_budget
    drafter.learn([list(PROMPT) * 9])  # which a replay begins with forgetting
    acceptance = replay(target, recorded, drafter).acceptance()
    live = RememberingDrafter(6)
    decoder = Decoder(target, live, gamma=Gamma(3), sampling=GREEDY, strict=True)
    calls = [decoder.generate([prompt], SETTINGS).metrics.target_calls for prompt in PROMPTS]
    assert calls[-1] < calls[0], "it knows the text by then"
    expected = [expected_metrics([one], Gamma(3), greedy=True).metrics.target_calls for one in acceptance]
    assert expected == pytest.approx(calls)


def test_what_is_expected_of_a_text_does_not_depend_on_which_others_are_replayed(target, recorded):
    drafter = RememberingDrafter(6)
    whole = replay(target, recorded, drafter).acceptance()
    some = replay(target, recorded, drafter, (1, 4)).acceptance()
    for one, other in zip(some, (whole[1], whole[4]), strict=True):
        np.testing.assert_array_equal(one.accept(), other.accept())
        np.testing.assert_array_equal(one.offered, other.offered)


def test_a_replay_may_be_repeated_and_timed(target, recorded):
    drafter = RememberingDrafter(6)
    first, second = replay(target, recorded, drafter), replay(target, recorded, drafter, batch_size=4)
    assert len(first.costs(StepCosts(verify=(1.0,), overhead=0.0), 1).draft) == 4
    for one, other in zip(first.acceptance(), second.acceptance(), strict=True):
        np.testing.assert_array_equal(one.accept(), other.accept())
