"""Prompts with images and sound: `generate_with` reads them once, then decodes as plain `generate` does."""

from collections import Counter

import pytest
import torch

from specdec_core import Decoder, generate_with
from specdec_core.interface import ModelError, TokenTree
from specdec_core.models import ModelSession, wrap_model
from specdec_core.models.run.prompt_inputs import PromptInputs
from tests.generation.families import noisy
from tests.lossless import p_value
from tests.multimodal import FAMILIES, IDS, IMAGE, SIZES, build, prompts
from tests.toys import Gamma, MostlyRight, TableDrafter

ROWS = [[5, IMAGE, 6, 7], [IMAGE, 5, 6, IMAGE, 8], [4, 3]]
GREEDY = {"max_new_tokens": 14, "do_sample": False}


def drafting(given, expected):
    """Return a drafter that knows the texts of a batch, without their padding."""
    begins = (given["attention_mask"] == 0).sum(dim=1).tolist()
    return MostlyRight([row[begin:] for row, begin in zip(expected.tolist(), begins, strict=True)], vocab=36)


SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES if family not in ("gemma3", "qwen3_5")]


@pytest.mark.parametrize("family", ["gemma3", "qwen3_5", *SLOW])
def test_a_batch_with_images_is_decoded_as_generate_does(family):
    model, given = build(family), prompts(family, ROWS)
    expected = model.generate(**given, **GREEDY)
    assert (model.generate(**prompts(family, ROWS, seed=1), **GREEDY) != expected).any()  # the images matter
    function = generate_with(drafter=drafting(given, expected), gamma=Gamma(4, 1, 3), strict=True)
    assert model.generate(**given, **GREEDY, custom_generate=function).equal(expected)
    assert 0 < function.metrics.accepted < function.metrics.drafted
    assert function.metrics.target_calls < 14


@pytest.mark.slow
def test_a_model_that_makes_its_cache_reads_one_prompt_with_images(monkeypatch):
    architecture, own = FAMILIES["llava"]
    chunked = {"model_type": "llama4_text", "attention_chunk_size": 6, "num_local_experts": 2}
    text = SIZES | IDS | chunked | {"intermediate_size_mlp": 48}
    monkeypatch.setitem(FAMILIES, "llama4", (architecture, own | {"text_config": text}))
    model, given = build("llama4"), prompts("llama4", ROWS[1:2])
    expected = model.generate(**given, **GREEDY)
    function = generate_with(drafter=drafting(given, expected), gamma=3, strict=True)
    assert model.generate(**given, **GREEDY, custom_generate=function).equal(expected)
    assert 0 < function.metrics.accepted < function.metrics.drafted
    with pytest.raises(ModelError, match="holds one row, and 3 prompts"):
        model.generate(**prompts("llama4", ROWS), **GREEDY, custom_generate=function)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["tree", "another model for images"])
@pytest.mark.parametrize("family", ["gemma3", "qwen3_vl"])
def test_trees_and_draft_models_follow_images(family, drafter, tmp_path):
    model, given = build(family), prompts(family, ROWS)
    noisy(model).save_pretrained(tmp_path)  # it reads ids only
    tree = {"drafter": TableDrafter(40), "gamma": Gamma(5, tree=TokenTree((-1, -1, 0, 0, 1)))}
    draft_model = {"drafter": {"name": "transformer", "model": str(tmp_path)}, "gamma": 3}
    function = generate_with(**(tree if drafter == "tree" else draft_model), strict=True)
    settings = GREEDY | {"max_new_tokens": 40}
    assert model.generate(**given, **settings, custom_generate=function).equal(model.generate(**given, **settings))
    assert 0 < function.metrics.accepted < function.metrics.drafted


@pytest.mark.slow
@pytest.mark.parametrize(("family", "count"), [("gemma3", 400), ("qwen3_vl", 600), ("qwen3_5", 150)])
def test_samples_follow_the_distribution_of_generate(family, count):
    model, row = build(family), [5, IMAGE, 6, 7]
    settings = {"do_sample": True, "temperature": 2.0, "top_k": 3, "suppress_tokens": [IMAGE]}
    asked = settings | {"max_new_tokens": 1, "return_dict_in_generate": True, "output_scores": True}
    expected = {(): 1.0}
    for _ in range(3):
        longer = {}
        for text, mass in expected.items():
            scores = model.generate(**prompts(family, [[*row, *text]]), **asked).scores[0][0]
            top = zip(*(part.tolist() for part in scores.softmax(dim=0).topk(3)), strict=True)
            longer |= {(*text, token): mass * p for p, token in top}
        expected = longer
    function = generate_with(drafter=TableDrafter(40), gamma=2, strict=True)
    settings |= {"max_new_tokens": 3, "num_return_sequences": count}
    torch.manual_seed(0)
    ids = model.generate(**prompts(family, [row]), **settings, custom_generate=function)
    assert p_value(Counter(map(tuple, ids[:, -3:].tolist())), expected) > 1e-3


def test_hidden_states_of_a_prompt_are_in_the_slots_of_its_tokens():
    model, given = build("qwen2_vl"), prompts("qwen2_vl", ROWS)
    states = model(**given, output_hidden_states=True).hidden_states[1]
    ids, real = given.pop("input_ids"), given["attention_mask"].bool()
    prompt = PromptInputs(ids, given)
    assert (prompt.slots(trash=20)[~real] == 20).all()
    session = ModelSession(wrap_model(model), 3, 20, hidden_layers=(1,), prompt=prompt)
    session.forward([row[kept].tolist() for row, kept in zip(ids, real, strict=True)])
    for found, wanted, kept in zip(session.hidden_states[1], states, real, strict=True):
        torch.testing.assert_close(found[: kept.sum()], wanted[kept])


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_a_text_does_not_continue_the_positions_of_another_call(family):
    model, given = build(family), prompts(family, [[5, IMAGE, 6]])
    decoder = Decoder(wrap_model(model))
    expected = decoder.generate([5, 6, 7], max_new_tokens=8).tokens
    model.generate(**given, max_new_tokens=2)  # leaves its `rope_deltas` in the model
    assert decoder.generate([5, 6, 7], max_new_tokens=8).tokens == expected


def test_positions_that_were_given_go_on_as_in_generate():
    model, given = build("llava"), prompts("llava", [[5, 6, 7], [4, 3]])
    given["position_ids"] = torch.tensor([[3, 5, 6], [0, 9, 10]])
    function = generate_with(drafter="prompt-copy", gamma=2, strict=True)
    expected = model.generate(**given, **GREEDY)
    assert model.generate(**given, **GREEDY, custom_generate=function).equal(expected)
