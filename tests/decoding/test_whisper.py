"""Encoders that read no token ids: Whisper, with a distilled decoder that shares its encoder, and others.

The audios differ so much that a sequence that attends to another one's gives other tokens.
"""

from collections import Counter
from itertools import product

import pytest
import torch
import transformers

from specdec_core import Decoder, generate_with
from specdec_core.interface import PluginError
from specdec_core.interface.errors import ArgumentError, PromptError
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import load_model, wrap_model
from specdec_core.testing.harness.tiny_target import random_model
from tests.catalogue import ARPA
from tests.lossless import enumerate_continuations, p_value
from tests.pairwise import some
from tests.tiny import BOTH_SIDES
from tests.toys import Gamma
from tests.whisper import AUDIO, ENGLISH, PREVIOUS, START, TRANSCRIBE, UNTIMED, distilled, speech, whisper


@pytest.fixture(scope="module", name="speech")
def speech_fixture():
    return speech()


@pytest.fixture(scope="module")
def student(speech, tmp_path_factory):
    return distilled(speech, tmp_path_factory.mktemp("student"))


LONG = torch.randn(2, 4, 36, generator=torch.Generator().manual_seed(0))
LONG_MASK = (torch.arange(36) < torch.tensor([[36], [24]])).long()
LONG_FORM = {"attention_mask": LONG_MASK, "return_timestamps": True, "condition_on_prev_tokens": True}
FALLBACK = {"temperature": (0.0, 0.4), "top_k": 1, "compression_ratio_threshold": 1.3, "no_speech_threshold": 0.6}
TASK = {"language": ["en", "de", "en"], "task": "transcribe", "prompt_ids": torch.tensor([PREVIOUS, 3, 4])}
SHORT_FORM = {"suppress_tokens": UNTIMED, **TASK}
CALLS = {"short": (AUDIO, SHORT_FORM), "long": (LONG, LONG_FORM | FALLBACK | {"logprob_threshold": -0.05})}


@pytest.mark.parametrize(("call", "who"), some(product(CALLS, ["student", "prompt-copy"]), 2))
def test_the_model_transcribes_as_without_a_drafter(speech, student, call, who):
    audio, settings = CALLS[call]
    expected = speech.generate(audio, **settings)
    drafter = {"name": "transformer", "model": student} if who == "student" else who
    function = generate_with(drafter, gamma=3, strict=True)
    assert speech.generate(audio, custom_generate=function, **settings).equal(expected)
    assert len(set(map(tuple, expected.tolist()))) == len(audio)
    assert function.metrics.accepted > 0 or who != "student"


def test_rows_that_begin_with_unequal_tokens_have_their_own_audio(speech):
    begins = [[START], [START, ENGLISH, TRANSCRIBE], [START, 5, 6, 7]]
    encoded = speech.get_encoder()(AUDIO)
    decoder = Decoder(wrap_model(speech), "prompt-copy", gamma=Gamma(3, 1, 0), temperature=0, strict=True)
    settings = {"max_new_tokens": 60, "ignore_eos": True}
    rows = decoder.generate(begins, encoder_outputs=encoded, **settings).sequences
    for audio, begin, row in zip(AUDIO, begins, rows, strict=True):
        given = {"input_features": audio[None], "decoder_input_ids": torch.tensor([begin]), "max_length": 48}
        plain = {"eos_token_id": None, "do_sample": False, "suppress_tokens": None}
        expected = transformers.GenerationMixin.generate(speech, **given, **plain)
        assert list(row.tokens) == expected[0, len(begin) :].tolist()  # up to the last position
        assert row.finish_reason == "context"


@pytest.fixture(scope="module")
def small():
    model = whisper(vocab=6, end=1, start=2, sharpness=0.8, positions=3)
    return model, model.get_encoder()(AUDIO).last_hidden_state


@pytest.mark.parametrize("who", ["student", "bigram"])
def test_each_sequence_has_the_distribution_of_its_own_audio(small, tmp_path, who):
    model, states = small
    target = wrap_model(model)
    expected = [enumerate_continuations(target, SamplingSettings(), one) for one in states]
    (tmp_path / "ids.arpa").write_text(ARPA)
    drafter = {"name": "ngram", "order": 2, "arpa": str(tmp_path / "ids.arpa")}
    if who == "student":
        drafter = {"name": "transformer", "model": distilled(model, tmp_path)}
    decoder, copies = Decoder(target, drafter, gamma=Gamma(2, 3), strict=True), 400
    begins, encoded = [[2]] * (3 * copies), states.repeat(copies, 1, 1)
    found = decoder.generate(begins, encoder_outputs=encoded, max_new_tokens=3)
    seen = [Counter(one.tokens for one in found.sequences[row::3]) for row in range(3)]
    for row in range(3):
        assert p_value(seen[row], expected[row]) > 1e-4
        assert p_value(seen[row], expected[row - 1]) < 1e-4  # the sample is large enough to tell audios apart
    assert 0 < found.metrics.alpha < 1


def runs_of(encoder):
    """Return a list that grows with each run of an encoder."""
    runs = []
    encoder.register_forward_pre_hook(lambda *_: runs.append(1))
    return runs


def test_an_encoder_with_the_same_weights_is_shared_and_another_reads_the_same_audio(small, tmp_path):
    model, states = small
    target, runs = wrap_model(model), runs_of(model.get_encoder())
    settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    left = {"left": ("model.encoder", "model.decoder.embed_tokens")}
    others = {"same": {}, "left to it": left, "smaller": {"encoder_layers": 1}, "changed": {"change": 0.1}}
    for name, other in others.items():
        drafter = {"name": "transformer", "model": distilled(model, tmp_path / name, **other)}
        decoder = Decoder(target, drafter, gamma=3, temperature=0, strict=True)
        assert (decoder.drafter.loaded.model.get_encoder() is model.get_encoder()) is (other in ({}, left))
        own = runs_of(decoder.drafter.loaded.model.get_encoder())
        function = generate_with(decoder.drafter, gamma=3, strict=True)
        runs.clear()
        transformers.GenerationMixin.generate(model, AUDIO, custom_generate=function, **settings)
        assert runs == own == [1]
        assert function.metrics.drafted > 0
    # The last decoder's draft model has an encoder of its own, and nothing to read.
    with pytest.raises(PluginError, match="has an encoder, and what it is to read is not known"):
        decoder.generate([[2]] * 3, encoder_outputs=states)


def test_the_beams_of_a_sequence_and_their_drafts_read_its_audio(small, tmp_path):
    model, states = small
    plain = transformers.GenerationMixin.generate(model, AUDIO, num_beams=2, max_new_tokens=6, do_sample=False)
    same = {"name": "transformer", "model": distilled(model, tmp_path, decoder_layers=2)}
    decoder = Decoder(wrap_model(model), same, gamma=3, temperature=0, strict=True)
    found = decoder.generate([[2]] * 3, encoder_outputs=states, beams=2, max_new_tokens=6)
    expected = [row[1 : row.index(1) + 1 if 1 in row else None] for row in plain.tolist()]
    assert [list(row.tokens) for row in found.sequences] == expected
    assert found.metrics.accepted == found.metrics.drafted > 0


def test_what_an_encoder_cannot_read_is_an_error(small, student):
    model, states = small
    target = load_model(student)
    assert not target.reads_ids
    with pytest.raises(PromptError, match=r"reads input_features\. .* pass .*encoder_outputs"):
        Decoder(target).generate([5, 6])
    with pytest.raises(ArgumentError, match=r"\(3, 8, 32\) where states \[1, S, D\] belong"):
        Decoder(wrap_model(model)).generate([2], encoder_outputs=states)
    with pytest.raises(ArgumentError, match="has str where states"):
        Decoder(wrap_model(model)).generate([2], encoder_outputs="states")


_IDS = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "decoder_start_token_id": 2}


def speech_to_text():
    """Return a model that makes the mask of its encoder's states of that of its inputs, and such inputs."""
    sizes = {"d_model": 32, "conv_channels": 16, "input_feat_per_channel": 8, **BOTH_SIDES}
    config = transformers.Speech2TextConfig(**_IDS, **sizes, conv_kernel_sizes=[3, 3], max_target_positions=48)
    mask = (torch.arange(32) < torch.tensor([[32], [20]])).long()
    return config, {"input_features": torch.randn(2, 32, 8), "attention_mask": mask}


def moonshine():
    """Return a model whose encoder returns a mask."""
    heads = {f"{side}_num_attention_heads": 2 for side in ("encoder", "decoder")}
    config = transformers.MoonshineConfig(**_IDS, **heads, hidden_size=32, intermediate_size=48)
    mask = (torch.arange(4000) < torch.tensor([[4000], [2000]])).long()
    return config, {"input_values": torch.randn(2, 4000), "attention_mask": mask}


@pytest.mark.parametrize("family", [speech_to_text, moonshine])
def test_encoders_of_other_families_run_once_and_their_masks_are_kept(family):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config, inputs = family()
    model = random_model(config, kind=transformers.AutoModelForSpeechSeq2Seq._model_mapping[type(config)])
    asked = {"output_logits": True, "return_dict_in_generate": True, "eos_token_id": None, "pad_token_id": 1}
    settings = {**inputs, "max_new_tokens": 12, "do_sample": False, **asked}
    expected = torch.stack(model.generate(**settings).logits)
    function = generate_with("prompt-copy", gamma=Gamma(3, 1, 0), strict=True)
    runs = runs_of(model.get_encoder())
    found = torch.stack(model.generate(custom_generate=function, **settings).logits)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (expected[:, 0] - expected[:, 1]).abs().max() > 0.01
    assert runs == [1]
    assert function.metrics.accepted > 0
