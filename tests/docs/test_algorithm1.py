"""`examples/algorithm1.py`: the tokens of the core, from plain torch on one page."""

import pytest

from specdec_core import Decoder, load_model
from tests.docs.pages import ROOT, load

PROMPTS = ["import os\n\ndef read", "class Stack:\n    def", "for x in"]


@pytest.fixture(scope="module")
def algorithm1():
    return load(ROOT / "examples" / "algorithm1.py")


@pytest.fixture(scope="module")
def models():
    return load_model("builtin:target", packed=False), load_model("builtin:drafter", packed=False)


@pytest.mark.parametrize(
    ("gamma", "temperature"),
    [
        (4, 0.0),
        pytest.param(1, 0.7, marks=pytest.mark.slow),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, 0.0), (4, 0.7), (1, 1.0), (4, 1.0))),
    ],
)
def test_it_decodes_the_tokens_of_the_core(algorithm1, models, temperature, gamma):
    target, drafter = models
    decoder = Decoder(
        target, {"name": "transformer", "model": "builtin:drafter"}, gamma=gamma, temperature=temperature
    )
    for seed, text in enumerate(PROMPTS, start=2**40):
        prompt = target.tokenizer(text).input_ids
        tokens, passes = algorithm1.generate(
            target.model,
            drafter.model,
            prompt,
            gamma=gamma,
            temperature=temperature,
            max_new_tokens=12,
            eos_ids=target.eos_ids,
            seed=seed,
        )
        result = decoder.generate(text, max_new_tokens=12, seeds=[seed])
        assert result.sequences[0].tokens == tuple(tokens)
        assert result.metrics.target_calls == passes
