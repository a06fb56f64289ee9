"""Decoders whose parts are on chosen devices, alike but for these."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from specdec_core import default_registry
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.result import BatchResult
from specdec_core.interface import Drafter
from specdec_core.models import LoadedModel, compile_model, wrap_model
from specdec_core.testing.harness.tiny_target import VOCAB
from tests.catalogue import GAMMAS, Catalogue
from tests.tiny import tiny_model

PROMPTS = [[2, 3, 5, 2, 3], [1, 0], [3, 5, 2, 3, 5, 2, 3, 0, 1], [4]]
TOKENS = 12


@cache
def target_on(device: str, family: str = "gpt2", *, graphs: bool = False) -> LoadedModel:
    """Return the target; with `graphs`, its passes are CUDA graphs on the device, and eager on the CPU."""
    loaded = wrap_model(tiny_model(family, VOCAB, sharpness=0.8).to(device))
    return compile_model(loaded) if graphs and device != "cpu" else loaded


@cache
def catalogue_on(device: str, family: str = "gpt2") -> Catalogue:
    return Catalogue(target_on(device, family), Path(mkdtemp()))


@cache
def model_drafter(device: str) -> Drafter:
    """Return a drafter with a model of its own, on a device of its own."""
    registry, folder = default_registry(), mkdtemp()
    tiny_model("llama", VOCAB, seed=5, sharpness=0.8).save_pretrained(folder)
    config = registry.spec("drafter", "transformer").config(model=folder, device=device)
    return registry.create("drafter", "transformer", config, target_on("cpu").info())


def gamma_of(who: str) -> dict[str, object]:
    name, settings = GAMMAS[who]
    return {"name": name, **settings}


def tokens_of(result: BatchResult) -> list[list[int]]:
    """Return the tokens; fail if a plugin failed."""
    assert not result.failures, result.failures
    return [list(one.tokens) for one in result]


def decode(decoder: Decoder, rows: int = len(PROMPTS), **settings) -> list[list[int]]:
    return tokens_of(decoder.generate(PROMPTS[:rows], max_new_tokens=TOKENS, seed=3, **settings))
