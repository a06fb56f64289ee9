"""Assistants of Gemma 4: tiny ones from configs, against transformers' own code."""

from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

from specdec_core import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import ModelError
from specdec_core.models import wrap_model
from specdec_core.testing import DrafterKit
from specdec_core.testing.harness.state import model_state
from specdec_core.testing.harness.tiny_target import TinyTarget
from specdec_drafters.assistant import AssistantDrafter, read_assistant
from specdec_drafters.settings import AssistantConfig
from tests import lossless
from tests.conformance import failure_of, kit_of
from tests.drafters.assistants import V, assistants_built, target_of, write
from tests.tiny import tiny_model
from tests.toys import Gamma

PROMPTS = [[2, 3, 4, 5, 6, 7], [8, 7], [*range(9, 31)]]
CLUSTERS = {"use_ordered_embeddings": True, "num_centroids": 8, "centroid_intermediate_top_k": 3}


@pytest.fixture(autouse=True, scope="module")
def buildable():
    with assistants_built():
        yield


@torch.inference_mode()
def drafted(target, assistant, tokens, count):
    """What transformers drafts after a text that the target read without a cache."""
    assistant.generation_config.num_assistant_tokens = count
    settings = GenerationConfig(max_length=1000)
    ids = torch.tensor([tokens])
    generator = SinglePositionMultiTokenCandidateGenerator(
        **{"input_ids": ids, "model_kwargs": {}},  # of transformers 5.17
        assistant_model=assistant,
        target_model_input_embeddings=target.get_input_embeddings(),
        generation_config=settings,
    )
    asked = {"output_hidden_states": True, "return_shared_kv_states": True, "use_cache": False}
    output = target(ids[:, :-1], **asked)
    # The last of the tokens that the target read; transformers 5.17 asks for its number in the first step, too.
    return generator.get_candidates(ids, {}, output, False, len(tokens) - 2)[0][0, len(tokens) :].tolist()


CASES = [("shared", True), ("keys-are-values", False), pytest.param("unified", False, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("family", "ordered"), CASES)
def test_greedy_drafts_are_those_of_transformers(family, ordered, tmp_path):
    loaded, trace = target_of(family), TraceObserver()
    model = write(tmp_path, family, **(CLUSTERS if ordered else {}))
    texts = [list(prompt) for prompt in PROMPTS]
    drafter = AssistantDrafter(AssistantConfig(model=model), loaded.info())
    decoder = Decoder(loaded, drafter, gamma=Gamma(3, 2, 3, 0, 3), temperature=0, strict=True)
    decoder.generate(PROMPTS, max_new_tokens=16, ignore_eos=True, observers=[trace])
    for report in trace.reports:
        for text, draft, new in zip(texts, report.draft_tokens, report.outcome.committed, strict=True):
            if draft:
                assert list(draft) == drafted(loaded.model, drafter.assistant.model, text, len(draft))
            text += new
    assert len({draft for report in trace.reports for draft in report.draft_tokens}) > 9


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A target whose continuations can be enumerated, and its assistant."""
    folder = tmp_path_factory.mktemp("assistant")
    vocab = lossless.VOCAB
    return target_of(vocab=vocab, sharpness=0.8), write(folder, vocab=vocab, **CLUSTERS | {"num_centroids": 6})


def test_drafts_leave_the_distribution_as_it_is(small):
    target, model = small
    settings = lossless.SETTINGS["temperature-0.7"]
    drafter = {"name": "assistant", "model": model}
    decoder = Decoder(target, drafter, gamma=Gamma(3, 1, 2), sampling=settings, strict=True)
    expected = lossless.enumerate_continuations(target, settings)
    assert lossless.doubled_p_value(decoder, expected, 1600) > 1e-4


CHECKS = ("hidden_states_declared", "rollback", "draft_sampled_from_q", "full_capacity")
SLOW = ("rows_independent", "inputs_unchanged", "inside_hierarchy", "replay_equals_live", "many_steps")


@pytest.mark.parametrize("check", [*CHECKS, *(pytest.param(check, marks=pytest.mark.slow) for check in SLOW)])
def test_the_drafter_passes_the_kit(small, check):
    loaded, model = small
    state = model_state(loaded.model, loaded.tokenizer, loaded.features)
    target = TinyTarget(loaded, loaded.info(), state)
    said = {"config": AssistantConfig, "targets": property(lambda kit: (target,))}
    kit = kit_of(DrafterKit, lambda info: AssistantDrafter(AssistantConfig(model=model), info), **said)
    assert failure_of(kit, check) is None


@pytest.mark.parametrize(
    ("sizes", "change", "said"),
    [
        ({"backbone_hidden_size": 24}, {}, "hidden states of size 24"),
        ({"vocab": V + 1}, {}, "a vocabulary of 41"),
        ({}, {"post_projection.weight": None}, "lacks the weights post_projection"),
        ({}, {"pre_projection.weight": torch.ones(2, 2)}, r"pre_projection.weight is \(2, 2\)"),
    ],
)
def test_an_assistant_that_does_not_fit_is_refused(sizes, change, said, tmp_path):
    path = tmp_path / "model.safetensors"
    write(tmp_path, **sizes)
    tensors = {name: weight for name, weight in (load_file(path) | change).items() if weight is not None}
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ModelError, match=said):
        AssistantDrafter(AssistantConfig(model=str(tmp_path)), target_of().info())


def test_other_models_targets_and_versions_are_refused(small, tmp_path, monkeypatch):
    target, model = small
    llama = tiny_model("llama", lossless.VOCAB, hidden_size=32)
    llama.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="a model of type 'llama'"):
        read_assistant(str(tmp_path), target.info())
    with pytest.raises(ModelError, match="this target is a LlamaForCausalLM"):
        read_assistant(model, wrap_model(llama).info())
    with pytest.raises(ModelError, match="not loaded"):
        read_assistant(model, replace(target.info(), model=None))
    monkeypatch.setattr(transformers.Gemma4AssistantForCausalLM, "__init__", fails)
    with pytest.raises(ModelError, match=r"cannot build .*: the set of layer types.*5\.24\.0 do"):
        read_assistant(model, target.info())


def fails(self, config):
    raise ValueError("the set of layer types differs")
