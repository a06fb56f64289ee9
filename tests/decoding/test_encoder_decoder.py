"""Encoder-decoder targets: every drafter, sources of different lengths, and one source per sequence.

The sources differ so much that a sequence that attends to another one's source gives other tokens.
"""

import copy
import functools
from collections import Counter

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import LAST_HIDDEN, ModelError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import ModelSession, load_model, wrap_model
from tests.catalogue import DRAFTERS, Catalogue
from tests.lossless import VOCAB, enumerate_continuations, p_value
from tests.tiny import ENCODER_DECODER, generated, tiny_model
from tests.toys import CountingDrafter, Gamma
from tests.whisper import saved

SOURCES = ((2, 3, 5, 2, 3, 4, 4, 1), (5, 1), (4, 4, 2, 3, 1))
START = 2
"""A start token other than padding, which is the library's default."""
GREEDY = SamplingSettings(temperature=0)
LENGTH = 12
"""Number of greedy tokens that are compared."""
SETTINGS = {"t5": {}, "t5 scaled": {"tie_word_embeddings": True}, "bart": {}}
"""Kinds of models. The first T5 scales its hidden states before the output embedding; v1.1 does not."""


def loaded_model(kind, device):
    """Return a random model, changed so that its output depends on the source and does not loop."""
    model = tiny_model(kind.partition(" ")[0], VOCAB, seed=2, sharpness=1.2, **SETTINGS[kind])
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = START
    with torch.no_grad():
        if kind == "bart":
            for layer in model.model.decoder.layers:
                layer.encoder_attn.out_proj.weight.mul_(4)
        else:
            # With tied embeddings a random model repeats one token for ever.
            scale = 1.2 * (32**0.5 if SETTINGS[kind] else 1.0)
            model.lm_head.weight = torch.nn.Parameter(model.shared.weight.roll(1, 0) * scale)
            model.shared.weight.mul_(30)
    return wrap_model(model.to(device))


@pytest.fixture(scope="module")
def target_of(device):
    return functools.cache(lambda kind: loaded_model(kind, device))


@pytest.fixture(params=SETTINGS)
def target(request, target_of):
    return target_of(request.param)


@pytest.fixture(scope="module")
def catalogue_of(tmp_path_factory):
    return functools.cache(lambda target: Catalogue(target, tmp_path_factory.mktemp("drafters")))


@pytest.fixture
def make(target, catalogue_of):
    return catalogue_of(target).make


@functools.cache
def answers_of(target):
    """Return the library's tokens for each source, which must differ for this module to test anything."""
    found = [generated(target.model, list(source), LENGTH, eos_token_id=None) for source in SOURCES]
    assert len(set(map(tuple, found))) == len(SOURCES)
    return found


@pytest.fixture
def answers(target):
    return answers_of(target)


QUICK = ("transformer", "heads", "eagle3", "copy-recent", "hierarchy-chain")
"""Drafters of each kind; tests/test_lossless_drafters.py samples with all, in the default tests too."""
ALL = [who if who in QUICK else pytest.param(who, marks=pytest.mark.slow) for who in DRAFTERS]
DRAFTERS_OF_KIND = [
    pytest.param(kind, who, marks=() if who in QUICK else pytest.mark.slow)
    for kind in SETTINGS
    # What differs between kinds is how hidden states are scaled and positions are counted.
    for who in (DRAFTERS if kind == "t5" else ["transformer", "heads", "hierarchy-chain"])
]


@pytest.mark.parametrize(("target", "who"), DRAFTERS_OF_KIND, indirect=["target"])
def test_greedy_tokens_equal_those_of_generate_alone_and_in_a_batch(target, make, answers, who):
    decoder = Decoder(target, make(who), gamma=Gamma(3, 1, 0, 4), sampling=GREEDY, strict=True)
    settings = GenerationSettings(max_new_tokens=LENGTH, ignore_eos=True)
    rows = decoder.generate([list(source) for source in SOURCES], settings).sequences
    assert [list(row.tokens) for row in rows] == answers
    assert [row.prompt for row in rows] == list(SOURCES)
    shortest = SOURCES.index(min(SOURCES, key=len))  # padded most in the batch
    alone = decoder.generate([list(SOURCES[shortest])], settings).sequences[0]
    assert list(alone.tokens) == answers[shortest]


@functools.cache
def distributions_of(target):
    return [enumerate_continuations(target, SamplingSettings(), source) for source in SOURCES]


COPIES = 160


@pytest.mark.parametrize("target", ["t5"], indirect=True)
@pytest.mark.parametrize("who", ALL)
def test_each_sequence_has_the_distribution_of_its_own_source(target, make, who):
    distributions = distributions_of(target)
    decoder = Decoder(target, make(who), gamma=Gamma(2, 3), strict=True)
    batch = [list(source) for source in SOURCES] * COPIES
    found = decoder.generate(batch, GenerationSettings(max_new_tokens=3)).sequences
    seen = [Counter(one.tokens for one in found[number :: len(SOURCES)]) for number in range(len(SOURCES))]
    for number, expected in enumerate(distributions):
        assert p_value(seen[number], expected) > 1e-4
        # The sample is large enough to tell the sources apart.
        assert p_value(seen[number], distributions[number - 1]) < 1e-4


def test_drafters_see_the_start_token_and_results_leave_it_out(target, answers):
    seen = []

    class Spy(CountingDrafter):
        def draft(self, tokens, budget):
            seen.append(list(tokens))
            return super().draft(tokens, budget)

    decoder = Decoder(target, Spy(VOCAB), gamma=Gamma(2), sampling=GREEDY, strict=True)
    settings = GenerationSettings(max_new_tokens=LENGTH, ignore_eos=True)
    result = decoder.generate([list(SOURCES[0])], settings, [trace := TraceObserver()])
    assert {tokens[0] for tokens in seen} == {START}
    assert seen[0] == [START]
    committed = [token for report in trace.reports for token in report.outcome.committed[0]]
    assert committed == list(result.sequences[0].tokens) == answers[0]


@pytest.mark.parametrize("target", ["t5"], indirect=True)
def test_a_decoder_alone_drafts_with_the_targets_encoder_and_embeddings(target, tmp_path):
    student, runs = copy.deepcopy(target.model), []
    student.decoder.block, student.config.num_decoder_layers = student.decoder.block[:1], 1
    left = ("encoder", "shared", "decoder.embed_tokens", "lm_head")
    folders = saved(student, tmp_path / "whole"), saved(student, tmp_path / "decoder", left)
    hook = target.model.get_encoder().register_forward_pre_hook(lambda *_: runs.append(1))
    prompts, settings = [list(source) for source in SOURCES], {"max_new_tokens": LENGTH, "ignore_eos": True}
    drafters = [{"name": "transformer", "model": folder} for folder in folders]
    whole, alone = (Decoder(target, one, gamma=3, strict=True).generate(prompts, **settings) for one in drafters)
    hook.remove()
    assert runs == [1, 1]  # once for both models
    assert [row.tokens for row in alone.sequences] == [row.tokens for row in whole.sequences]
    assert alone.metrics.accepted == whole.metrics.accepted > 0
    with pytest.raises(ModelError, match=r"are the target's \(`modules_of_target`\): use it as a draft model"):
        load_model(folders[1])
    with pytest.raises(ModelError, match="of another shape"):
        Decoder(wrap_model(tiny_model("t5", VOCAB, d_ff=8)), drafters[1], gamma=3)


@pytest.mark.parametrize(
    ("apart", "made"), [(False, [(2, 4)]), (True, [(2, 4), (1, 4), (1, 2)])], ids=["together", "apart"]
)
@pytest.mark.parametrize("family", ENCODER_DECODER)
def test_the_encoder_and_the_cross_attention_keys_are_computed_once(family, apart, made, device):
    """Once for the whole batch, and once more for a row that has a forward pass of its own."""
    model = tiny_model(family).to(device)
    loaded = wrap_model(model).row_by_row() if apart else wrap_model(model)
    encoded, keys = [], []
    model.get_encoder().register_forward_hook(lambda _m, _i, _o: encoded.append(1))
    layer = model.decoder.block[1].layer[1].EncDecAttention.k if family == "t5" else None
    layer = layer or model.model.decoder.layers[1].encoder_attn.k_proj
    layer.register_forward_hook(lambda _m, inputs, _o: keys.append(tuple(inputs[0].shape[:2])))
    session = ModelSession(loaded, 2, 32, [[3, 4, 5, 6], [7, 8]])
    session.forward([[0], [0]], torch.tensor([[5, 6], [7, 8]]))
    session.rollback([1, 2])
    for token in range(3, 8):
        session.forward([[token], [token]])
        session.rollback([1, 2])
    session.rollback([1, 1])
    session.forward([[9], [9]])
    assert encoded == [1]
    assert keys == made


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("family", ENCODER_DECODER)
def test_a_row_attends_to_its_own_source_when_the_others_read_nothing(family, apart, device):
    loaded = wrap_model(tiny_model(family).to(device))
    loaded = loaded.row_by_row() if apart else loaded
    sources = [[3, 4, 5, 6, 7], [8, 9], [10, 11, 12]]
    session = ModelSession(loaded, 3, 32, sources)
    for row, source in enumerate(sources):
        fresh = [[], [], []]
        fresh[row] = [0, 20 + row]
        logits = session.forward(fresh)[row, -1]
        alone = ModelSession(loaded, 1, 32, [source]).forward([[0, 20 + row]])[0, -1]
        torch.testing.assert_close(logits, alone, atol=2e-4, rtol=1e-4)


def test_a_source_longer_than_the_models_positions_is_an_error(device):
    loaded = wrap_model(tiny_model("bart").to(device), name="short")
    with pytest.raises(
        ModelError, match="short supports sources of at most 256 tokens, but one has 257; shorten it"
    ):
        ModelSession(loaded, 2, 8, [[3] * 4, [3] * 257])
    ModelSession(loaded, 2, 8, [[3] * 4, [3] * 256])


@pytest.mark.parametrize("tied", [True, False])
def test_hidden_states_are_the_input_of_the_output_embedding(tied):
    loaded = wrap_model(tiny_model("t5", tie_word_embeddings=tied))
    ids = torch.tensor([[2, 3, 4, 5]])
    session = ModelSession(loaded, 1, 16, [[7, 8]], hidden_layers=(LAST_HIDDEN,))
    logits = session.forward([[0]], ids)
    torch.testing.assert_close(session.hidden @ loaded.features.output_embeddings.T, logits)
    with torch.inference_mode():
        body = loaded.model.decoder(
            input_ids=torch.tensor([[0, 2, 3, 4, 5]]),
            encoder_hidden_states=loaded.model.encoder(torch.tensor([[7, 8]])).last_hidden_state,
        ).last_hidden_state
    torch.testing.assert_close(session.hidden, body * (32**-0.5 if tied else 1), atol=2e-4, rtol=1e-3)
