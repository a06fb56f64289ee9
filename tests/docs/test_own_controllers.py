"""The controllers of the tutorial do what it says."""

from __future__ import annotations

import shutil
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise

import pytest

from specdec_core.decoding import Decoder, TraceObserver
from specdec_core.registry import Registry
from specdec_core.settings import GenerationSettings
from specdec_core.study import load_study, run_model
from tests.docs.pages import ROOT
from tests.installed import site  # noqa: F401
from tests.lossless import PROMPT, VOCAB, small_target
from tests.toys import TableDrafter

PACKAGE = ROOT / "docs" / "examples" / "specdec-follow"
LENGTH = GenerationSettings(max_new_tokens=12, ignore_eos=True)


@pytest.fixture
def registry(site):  # noqa: F811
    """What ships, and the package of the page as if it were installed."""
    shutil.copy(PACKAGE / "specdec_follow.py", site.folder)
    own = [entry for entry in entry_points(group="specdec") if entry.dist and entry.dist.name == "specdec-core"]
    return Registry([*own, EntryPoint("follow", "specdec_follow", "specdec")])


@pytest.fixture
def made(registry):
    """Makes a run's controllers from what a study would say of them."""

    def make(kind, written):
        run = run_model(registry).model_validate({"drafter": "random", "gamma": 1, **{kind: written}})
        config = getattr(run, kind)
        return registry.create(kind, config.name, config)

    return make


def test_the_study_of_the_package_names_them(registry):
    runs = load_study(PACKAGE / "study.yaml", registry=registry).runs
    assert [run.name for run in runs] == ["plain", "always-4", "follow", "late"]


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
