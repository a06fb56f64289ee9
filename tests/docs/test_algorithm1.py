"""`examples/algorithm1.py`: the tokens of the core, from plain torch on one page."""

import re

import pytest
import torch

from specdec_core import Decoder, load_model
from specdec_core.interface import Dense, Proposal
from specdec_core.verification import accept, residual
from tests.docs.pages import ROOT, load

PROMPTS = ["import os\n\ndef read", "class Stack:\n    def", "for x in"]


@pytest.fixture(scope="module")
def algorithm1():
    return load(ROOT / "examples" / "algorithm1.py")


@pytest.fixture(scope="module")
def models():
    return load_model("builtin:target", packed=False), load_model("builtin:drafter", packed=False)


SLOW = [(1, 0.0), (1, 0.7), (4, 0.7), (1, 1.0), (4, 1.0)]


@pytest.mark.parametrize(
    ("gamma", "temperature"), [(4, 0.0), *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)]
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


def test_the_rejection_by_hand_is_what_the_core_computes():
    page = (ROOT / "docs" / "how-a-step-works.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| \d \| ([\d., ]+) \| ([\d., ]+) \| (\w) \| .*? = ([\d.]+) \| ([\d.]+) \| .*: (\w+) \|$", page, re.M
    )
    q, p = (torch.tensor([[float(one) for one in row[at].split(", ")] for row in rows]) for at in (0, 1))
    draft = ["abc".index(row[2]) for row in rows]
    assert [round(float(p[n, x] / q[n, x]), 2) for n, x in enumerate(draft)] == [float(row[3]) for row in rows]
    last = float(re.search(r"The last random number, ([\d.]+),", page)[1])
    proposal = Proposal(torch.tensor([draft]), (2,), Dense(q[None]))
    uniforms = torch.tensor([[*(float(row[4]) for row in rows), last]], dtype=torch.double)
    made = accept(proposal, torch.cat([p, p[:1]])[None], None, uniforms)
    assert [row[5] for row in rows] == ["accepted", "rejected"]
    assert (int(made.accepted), "abc"[int(made.token)]) == (1, "c")
    weights = residual(p[1:], proposal, 1, torch.ones(1))
    assert (weights / weights.sum())[0].tolist() == pytest.approx([0.5, 0, 0.5])
