"""The controllers of the tutorial do what it says."""

from __future__ import annotations

import shutil
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise

import pytest

from specdec_core.decoding import Decoder, TraceObserver
from specdec_core.registry import Registry
from specdec_core.settings import GenerationSettings
from specdec_core.study import run_model
from tests.docs.pages import ROOT
from tests.installed import site  # noqa: F401
from tests.lossless import PROMPT, SETTINGS, VOCAB, enumerate_continuations, p_value, sample, small_target
from tests.toys import TableDrafter

LENGTH = GenerationSettings(max_new_tokens=12, ignore_eos=True)


@pytest.fixture
def made(site):  # noqa: F811
    """Makes a run's controllers from what a study would say of them."""
    shutil.copy(ROOT / "docs" / "examples" / "own_controllers.py", site.folder)
    own = [entry for entry in entry_points(group="specdec") if entry.dist and entry.dist.name == "specdec-core"]
    registry = Registry([*own, EntryPoint("own_controllers", "own_controllers", "specdec")])

    def make(kind, written):
        run = run_model(registry).model_validate({"drafter": "random", "gamma": 1, **{kind: written}})
        config = getattr(run, kind)
        return registry.create(kind, config.name, config)

    return make


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("setting", ["argmax", "temperature-1"])
def test_the_gamma_controller_leaves_the_targets_distribution(made, setting, batch, device):
    target = small_target(device)
    follow = made("gamma", {"name": "follow", "most": 3})
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=follow, sampling=SETTINGS[setting], strict=True)
    count = 30 if setting == "argmax" else 600
    assert p_value(sample(decoder, batch, count), enumerate_continuations(target, SETTINGS[setting])) > 1e-4


def test_it_asks_for_one_token_more_than_were_accepted(made):
    trace = TraceObserver()
    decoder = Decoder(small_target("cpu"), TableDrafter(VOCAB), gamma=made("gamma", "follow"), strict=True)
    decoder.generate([PROMPT, PROMPT[:2]], LENGTH, observers=[trace])
    steps = trace.reports[:-4]  # near the end there is less room
    assert {1, 2} <= {asked for report in steps for asked in report.asked}
    for before, report in pairwise(steps):
        assert report.asked == tuple(accepted + 1 for accepted in before.accepted)


def test_the_lenience_controller_is_strict_at_first_and_lenient_then(made):
    late = made("lenience", {"name": "late", "strict_for": 5, "lenience": 0.2})
    assert not late.config.lossless
    trace = TraceObserver()
    gamma = made("gamma", 3)
    decoder = Decoder(small_target("cpu"), TableDrafter(VOCAB), gamma=gamma, lenience=late, strict=True)
    length = 0
    spent = {True: 0.0, False: 0.0}
    for seed in range(10):
        trace.reports.clear()
        decoder.generate([PROMPT], LENGTH.model_copy(update={"seed": seed}), observers=[trace])
        length = 0
        for report in trace.reports:
            # What is judged in a step stands in front of what it commits.
            spent[length + report.judged[0] <= 5] += report.deviation[0]
            length += len(report.committed[0])
    assert spent[True] == 0
    assert spent[False] > 1
