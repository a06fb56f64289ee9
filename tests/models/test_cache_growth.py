"""Caches that grow: texts are those of a cache that held the maximum from the beginning."""

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.models import ModelSession, load_model, wrap_model
from specdec_core.models.run import cache
from tests.tiny import tiny_model

TREE = {"name": "tree", "widths": [2, 1, 1]}
CASES = {
    "plain": ("llama", None, None, {}),
    "line": ("llama", "prompt-lookup", 4, {}),
    "sampled": ("gpt2", "random", 3, {"temperature": 1.0}),
    "encoder": ("t5", "prompt-lookup", 3, {}),
    "tree": ("llama", "prompt-lookup", TREE, {}),
    "sliding": ("mistral", "prompt-lookup", 4, {}),
}


def texts(family, drafter, gamma, settings, **more):
    target = wrap_model(tiny_model(family))
    decoder = Decoder(target, drafter, gamma=gamma, **{"temperature": 0, **settings})
    prompts = [[3, 1, 4, 1, 5], [9, 2]]
    return [one.tokens for one in decoder.generate(prompts, max_new_tokens=30, ignore_eos=True, **more)]


@pytest.mark.parametrize("case", CASES)
def test_growing_changes_no_text(case, monkeypatch):
    expected = texts(*CASES[case])
    monkeypatch.setattr(cache, "CHUNK", 3)
    assert texts(*CASES[case]) == expected


def test_growing_changes_no_beams(monkeypatch):
    expected = texts("llama", "prompt-lookup", 2, {}, beams=3)
    monkeypatch.setattr(cache, "CHUNK", 3)
    assert texts("llama", "prompt-lookup", 2, {}, beams=3) == expected


def test_hidden_states_of_layers_grow_with_the_keys(monkeypatch):
    decoder = Decoder(
        load_model("builtin:target", packed=False),
        {"name": "eagle3", "model": "builtin:eagle3"},
        gamma=3,
        temperature=0,
    )
    expected = decoder.generate("import os\n", max_new_tokens=24, ignore_eos=True)
    monkeypatch.setattr(cache, "CHUNK", 4)
    found = decoder.generate("import os\n", max_new_tokens=24, ignore_eos=True)
    assert found[0].tokens == expected[0].tokens
    assert found.metrics.accepted == expected.metrics.accepted > 0


def test_buffers_double_until_the_maximum_and_not_before_they_are_full(monkeypatch):
    monkeypatch.setattr(cache, "CHUNK", 4)
    session = ModelSession(wrap_model(tiny_model("llama")), 2, 18)
    sizes = []
    for length in range(1, 19):
        session.forward([[length], [length]])
        sizes.append(session._cache.buffers()[0].shape[2] - 1)
    assert sizes == [4] * 4 + [8] * 4 + [16] * 8 + [18] * 2
    session.rollback([1, 1])
    session.forward([[7], [7]])
    assert session._cache.capacity == 18


def test_stale_slots_of_a_larger_buffer_are_not_read(monkeypatch):
    monkeypatch.setattr(cache, "CHUNK", 4)
    loaded = wrap_model(tiny_model("llama"))
    grown, plain = ModelSession(loaded, 2, 20), ModelSession(loaded, 2, 20)
    grown.forward([[1, 2, 3], [4]], torch.tensor([[5, 6], [7, 8]]), [2, 2])
    grown.rollback([3, 2])
    plain.forward([[1, 2, 3], [4, 7]])
    assert torch.allclose(grown.forward([[9], [10]]), plain.forward([[9], [10]]), atol=1e-5)
