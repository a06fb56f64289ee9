"""Candidate generators of transformers as drafters: exact whatever logits they return."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import candidate_generator as hf

from specdec_core import Decoder, generate_with
from specdec_core.interface.errors import PluginWarning
from specdec_core.models import wrap_model
from specdec_drafters.candidates import CandidateDrafter
from tests.lossless import SETTINGS, VOCAB, doubled_p_value, enumerate_continuations, small_target
from tests.tiny import tiny_model
from tests.toys import Gamma

COUNT = 800


@pytest.fixture(scope="module")
def target(device):
    return small_target(device)


@pytest.fixture(scope="module")
def assistant(device):
    model = tiny_model("gpt2", VOCAB, seed=3, sharpness=0.8).to(device)
    model.generation_config.assistant_confidence_threshold = 0.3
    model.generation_config.num_assistant_tokens_schedule = "heuristic"
    return model


def assisted(assistant, kind=hf.AssistedCandidateGenerator, **settings):
    """Return what makes an assisted generator for a sequence."""
    config = GenerationConfig(max_length=200, min_length=0, pad_token_id=0, **settings)
    return lambda ids: kind(ids, assistant, config, {"attention_mask": torch.ones_like(ids)})


class RawArgmax(hf.CandidateGenerator):
    """Returns the argmax and raw logits, as `SinglePositionMultiTokenCandidateGenerator` does."""

    def __init__(self, model, known=None):
        self.model = model
        self.known = {} if known is None else known  # what was computed for another row

    def get_candidates(self, input_ids, **kwargs):
        key = tuple(input_ids[0].tolist())
        if key not in self.known:
            logits = []
            for _ in range(3):
                logits.append(self.model(input_ids).logits[:, -1:])
                input_ids = torch.cat([input_ids, logits[-1].argmax(dim=-1)], dim=1)
            self.known[key] = input_ids, torch.cat(logits, dim=1)
        return self.known[key]


def makers(assistant):
    known = {}
    return {
        "drawn": assisted(assistant, do_sample=True, top_k=0),
        "drawn with warpers": assisted(assistant, do_sample=True, top_k=3, temperature=1.5),
        "argmax": assisted(assistant, do_sample=False),
        "raw logits": lambda ids: RawArgmax(assistant, known),
        "lookup": lambda ids: hf.PromptLookupCandidateGenerator(max_length=200),
    }


@pytest.mark.parametrize(
    "setting", ["temperature-1", pytest.param("temperature-0.7-top-p-0.6", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("maker", makers(None))
def test_any_generator_is_lossless(target, assistant, maker, setting):
    torch.manual_seed(1)
    drafter = CandidateDrafter(makers(assistant)[maker], VOCAB)
    decoder = Decoder(target, drafter, gamma=Gamma(2, 3), sampling=SETTINGS[setting], strict=True)
    expected = enumerate_continuations(target, SETTINGS[setting], length=2)
    assert doubled_p_value(decoder, expected, COUNT, 100, length=2) > 1e-4


def test_a_q_that_was_not_drawn_from_would_change_the_text(target, assistant):
    # Why the logits of a generator are not believed: this is what happens to those that transformers believes.
    drafter = CandidateDrafter(makers(assistant)["raw logits"], VOCAB, draws_from_logits=True)
    decoder = Decoder(target, drafter, gamma=2, strict=True)
    expected = enumerate_continuations(target, SETTINGS["temperature-1"], length=2)
    assert doubled_p_value(decoder, expected, COUNT, 100, length=2) < 1e-4


def test_the_true_q_accepts_more_than_a_point_mass(target, assistant):
    alphas = {}
    for draws in (None, False):
        torch.manual_seed(2)
        maker = assisted(assistant, do_sample=True, top_k=0)
        drafter = CandidateDrafter(maker, VOCAB, draws_from_logits=draws)
        decoder = Decoder(target, drafter, gamma=3, strict=True)
        alphas[draws] = decoder.generate([[2, 3]] * 20, max_new_tokens=12, ignore_eos=True).metrics.alpha
    assert alphas[None] > alphas[False] + 0.1, alphas


@pytest.mark.parametrize("kind", [hf.AssistedCandidateGenerator, hf.EarlyExitCandidateGenerator])
def test_greedy_tokens_are_those_of_generate_for_ragged_rows(kind, device):
    model = tiny_model("llama", num_hidden_layers=3).to(device)
    settings = {"do_sample": False}
    if kind is hf.EarlyExitCandidateGenerator:
        helper, settings = model, {**settings, "assistant_early_exit": 2}
    else:
        helper = copy.deepcopy(model)
        with torch.no_grad():  # right now and then
            helper.lm_head.weight.add_(0.1 * torch.randn_like(helper.lm_head.weight))
    made = []

    def make(ids):
        made.append(assisted(helper, kind, **settings)(ids))
        return made[-1]

    rows, mask = torch.tensor([[0, 5, 6, 7], [9, 3, 5, 4]]), torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    plain = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    given = {"input_ids": rows.to(device), "attention_mask": mask.to(device), **plain}
    function = generate_with(drafter=CandidateDrafter(make, 40), gamma=Gamma(4, 1, 3), strict=True)
    ids = model.generate(custom_generate=function, **given)
    assert ids.tolist() == model.generate(**given).tolist()
    assert len(made) == 2
    assert function.metrics.accepted > 5
    assert model.config.num_hidden_layers == 3


class Watched(hf.CandidateGenerator):
    """Drafts four tokens, and keeps what it is told."""

    num_assistant_tokens = 4

    def __init__(self):
        self.limits, self.told = [], []

    def get_candidates(self, input_ids, **kwargs):
        self.limits.append(self.num_assistant_tokens)
        return torch.cat([input_ids, torch.full((1, self.num_assistant_tokens), 3)], dim=1), None

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        self.told.append((input_ids.tolist(), len(scores[0]), num_matches))
        self.num_assistant_tokens += 1 if num_matches else -1


def test_a_generator_learns_the_outcome_and_keeps_its_own_length():
    model = tiny_model("gpt2")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    watched = Watched()
    drafter = CandidateDrafter(lambda ids: watched, 40)
    decoder = Decoder(wrap_model(model), drafter, gamma=Gamma(2, 6), temperature=0, strict=True)
    # All logits are equal: the target says 0, and the candidates are wrong.
    result = decoder.generate([5, 6], max_new_tokens=5, ignore_eos=True)
    assert result.tokens == (0, 0, 0, 0, 0)
    assert watched.limits == [4, 2, 2, 1]
    assert watched.told == [([[5, 6, *[0] * n]], scores, 0) for n, scores in ((1, 5), (2, 3), (3, 3), (4, 2))]


def test_what_cannot_be_a_drafter_is_named():
    class Outputs(RawArgmax):
        requires_model_outputs = True

    class Headless(RawArgmax):
        def get_candidates(self, input_ids, **kwargs):
            return input_ids[:, 1:], None

    class Narrow(RawArgmax):
        def get_candidates(self, input_ids, **kwargs):
            ids, logits = super().get_candidates(input_ids)
            return ids, logits[..., :-1]

    model = tiny_model("gpt2")
    cases = {
        "Outputs needs the target's hidden states": Outputs(model),
        "returned ids of shape": Headless(model),
        r"logits of shape \[1, 3, 39\]; expected .* \[1, 3, 40\]": Narrow(model),
        "type int; it must return a CandidateGenerator": 3,
    }
    for message, generator in cases.items():
        drafter = CandidateDrafter(lambda ids, made=generator: made, 40, draws_from_logits=True)
        with pytest.warns(PluginWarning, match=message):
            Decoder(wrap_model(model), drafter, gamma=3).generate([5, 6], max_new_tokens=4)
