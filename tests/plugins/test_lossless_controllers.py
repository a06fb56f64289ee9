"""Every controller, set to be lossless: the target's distribution, and for argmax the target's tokens."""

from __future__ import annotations

import functools

import pytest

from specdec_core import default_registry
from specdec_core.decoding import Decoder
from specdec_core.settings import GenerationSettings, SamplingSettings
from specdec_drafters.configs import HierarchicalConfig
from specdec_drafters.hierarchical import HierarchicalDrafter
from tests.lossless import SETTINGS, VOCAB, enumerate_continuations, p_value, sample, small_target
from tests.tiny import tiny_model
from tests.toys import Gamma, TableDrafter

# Settings with which a controller moves within a few tokens. A lenience controller stands here with those with
# which it promises to be lossless.
CONTROLLERS = {
    "fixed": ("gamma", "fixed", {"gamma": 3}),
    "optimal": ("gamma", "optimal", {"alpha": 0.6, "c": 0.1}),
    "running-average": ("gamma", "running-average", {"initial": 1, "most": 3, "rate": 20, "memory": 0.5}),
    "running-average-timed": ("gamma", "running-average", {"initial": 2, "most": 3, "rate": 20, "c": None}),
    "additive": ("gamma", "additive", {"initial": 1, "most": 4}),
    "confidence": ("gamma", "confidence", {"threshold": 0.4, "most": 3}),
    "confidence-learnt": ("gamma", "confidence", {"threshold": 0.4, "most": 3, "learn": True, "memory": 0.5}),
    "cost-aware": (
        "gamma",
        "cost-aware",
        {"most": 3, "memory": 10, "probing": 0.2, "seconds": [1, 1.2, 1.3, 1.6]},
    ),
}
TIMED = ("running-average-timed", "cost-aware")
"""Those that follow the clock, or choose for all rows together: a sampled row depends on more than itself."""
PROMPTS = [[2, 3, 5, 2, 3], [4], [5, 5, 4, 3, 2, 0, 2, 3, 4, 4]]


@pytest.fixture(scope="module")
def target(device):
    return small_target(device)


@pytest.fixture(scope="module")
def expected(target):
    """Return the exact distribution of continuations of four tokens, enumerated once."""
    return functools.cache(lambda setting: enumerate_continuations(target, SETTINGS[setting], length=4))


def made(who):
    """Return the gamma and the lenience controller of a row of the table."""
    kind, name, settings = CONTROLLERS[who]
    registry = default_registry()
    controller = registry.create(kind, name, registry.spec(kind, name).config(**settings))
    return {"gamma": Gamma(3)} | {kind: controller}


def decoder(target, who, sampling, drafter=None):
    return Decoder(target, drafter or TableDrafter(VOCAB), sampling=sampling, strict=True, **made(who))


@pytest.mark.parametrize(("batch", "count"), [(1, 60), (3, 180), (100, 3000)])
@pytest.mark.parametrize("who", CONTROLLERS)
def test_a_controller_leaves_the_targets_distribution(target, expected, who, batch, count):
    seen = sample(decoder(target, who, SETTINGS["temperature-1"]), batch, count, length=4)
    assert p_value(seen, expected("temperature-1")) > 1e-4


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("who", CONTROLLERS)
def test_a_controller_leaves_the_argmax_tokens(target, who, batch):
    sampling = SamplingSettings(temperature=0)
    settings = GenerationSettings(max_new_tokens=40, ignore_eos=True)
    plain = Decoder(target, sampling=sampling).generate(PROMPTS[:batch], settings)
    result = decoder(target, who, sampling).generate(PROMPTS[:batch], settings)
    assert [row.tokens for row in result.rows] == [row.tokens for row in plain.rows]
    assert result.metrics.target_calls < plain.metrics.target_calls


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("who", [who for who in CONTROLLERS if who not in TIMED])
def test_a_row_does_not_depend_on_its_neighbours(target, who, temperature):
    alike = decoder(target, who, SamplingSettings(temperature=temperature))
    settings = GenerationSettings(max_new_tokens=30, seed=4, ignore_eos=True)

    def first_row(*others):
        reports = list(alike.stream([PROMPTS[0], *others], settings))
        return [(one.drafted[0], one.committed[0]) for one in reports if one.committed[0]]

    alone = first_row()
    assert first_row([2]) == first_row(*PROMPTS[1:]) == first_row() == alone
    assert sum(len(new) for _, new in alone) == 30


@pytest.mark.parametrize("who", [who for who in CONTROLLERS if CONTROLLERS[who][0] == "gamma"])
def test_a_controller_may_stand_within_a_hierarchy(target, expected, who, tmp_path):
    tiny_model("llama", VOCAB, seed=5, sharpness=0.8).save_pretrained(tmp_path)
    gamma = made(who)["gamma"]
    config = HierarchicalConfig(model=str(tmp_path), drafter=TableDrafter(VOCAB), gamma=gamma)
    drafter = HierarchicalDrafter(config, target.info())
    for batch, count in ((3, 60), (100, 1000)):
        seen = sample(decoder(target, who, SETTINGS["temperature-1"], drafter), batch, count, length=4)
        assert p_value(seen, expected("temperature-1")) > 1e-4
