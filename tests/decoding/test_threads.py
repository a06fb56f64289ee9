"""Several threads may share a model, a drafter and a decoder: each gets the tokens it would get alone."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import pack, wrap_model
from tests.catalogue import FORGETFUL, REMEMBERING, Catalogue
from tests.drafters.support import heads_for
from tests.lossless import VOCAB, small_target
from tests.tiny import FAMILIES, tiny_model
from tests.toys import Gamma

THREADS = 4
PROMPTS = ([[2, 3, 5, 2, 3], [4, 6]], [[7, 8]], [[9], [3, 3, 3, 3, 3, 3], [5, 4]], [[6, 5, 4]])
"""Rows of different lengths, so that passes are ragged; one batch for each thread."""


@pytest.fixture(autouse=True)
def hasty():
    """Switch threads often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def decode(decoder, thread):
    settings = GenerationSettings(max_new_tokens=10, seed=thread, ignore_eos=True)
    return [row.tokens for row in decoder.generate(PROMPTS[thread], settings).sequences]


@pytest.mark.parametrize(
    ("family", "temperature", "shared"),
    [("llama packed", 0, "decoder"), ("t5", 1, "model"), ("bart", 0, "decoder")],
)
def test_threads_get_the_tokens_they_would_get_alone(family, temperature, shared, tmp_path):
    check(family, temperature, shared, tmp_path, rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "temperature", "shared"),
    [
        (family, *((0, "model"), (1, "decoder"))[number % 2])
        for number, family in enumerate([*FAMILIES, "llama packed"])
    ],
)
def test_threads_of_every_family_get_the_tokens_they_would_get_alone(family, temperature, shared, tmp_path):
    check(family, temperature, shared, tmp_path, rounds=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "temperature"),
    # Sampled tokens depend on the drafts, which shows more than a greedy run, and on what a drafter that remembers
    # has read from other threads.
    [*((who, 1) for who in FORGETFUL), *((who, 0) for who in REMEMBERING)],
)
def test_threads_that_share_a_drafter_get_the_tokens_they_would_get_alone(who, temperature, shared_drafters):
    target, drafters = shared_drafters
    decoder = Decoder(target, drafters.make(who), gamma=Gamma(3, 1), temperature=temperature, strict=True)
    prompts = [[[token % VOCAB for token in row] for row in batch] for batch in PROMPTS]

    def run(thread):
        rows = decoder.generate(prompts[thread], seed=thread, max_new_tokens=12, ignore_eos=True)
        return [row.tokens for row in rows]

    alone = [run(thread) for thread in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        runs = [(thread, pool.submit(run, thread)) for _ in range(3) for thread in range(THREADS)]
    for thread, made in runs:
        assert made.result() == alone[thread]


@pytest.fixture(scope="module")
def shared_drafters(tmp_path_factory):
    target = small_target("cpu")
    return target, Catalogue(target, tmp_path_factory.mktemp("drafters"))


def check(family, temperature, shared, tmp_path, rounds):
    sizes = {"head_dim": 16} if family.endswith("packed") else {}
    loaded = wrap_model(tiny_model(family.split()[0], sharpness=1.5, **sizes))
    if sizes:
        loaded = pack(loaded)
    drafter = heads_for(loaded, tmp_path)

    def new_decoder():
        return Decoder(
            loaded, drafter, gamma=Gamma(3, 1), sampling=SamplingSettings(temperature=temperature), strict=True
        )

    alone = [decode(new_decoder(), thread) for thread in range(THREADS)]
    one = new_decoder()
    decoders = [one if shared == "decoder" else new_decoder() for _ in range(THREADS)]
    ids = torch.tensor([PROMPTS[0][0]])

    def generate():
        out = loaded.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
        return out.tolist()

    own = generate()
    with ThreadPoolExecutor(THREADS + 1) as pool:
        runs = [
            (thread, pool.submit(decode, decoders[thread], thread))
            for _ in range(rounds)
            for thread in range(THREADS)
        ]
        others = [pool.submit(generate) for _ in range(rounds)]
        for thread, run in runs:
            assert run.result() == alone[thread]
        for other in others:
            assert other.result() == own
