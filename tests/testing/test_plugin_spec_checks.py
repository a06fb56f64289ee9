"""The kit catches specs that do not fit their plugin."""

from __future__ import annotations

import pytest

from specdec_core.testing import named
from tests.conformance import failures, outcomes
from tests.installed import site  # noqa: F401  (a fixture)

PLUGIN = """
    {first}
    from specdec_core import DeterministicDrafter, DrafterConfig, PluginSpec, hookimpl

    class MineConfig(DrafterConfig):
        {summary}

        size: int = 2
        {about}

    class Mine(DeterministicDrafter):
        hidden_layers = {layers}

        def draft(self, tokens, budget):
            return []

    @hookimpl
    def specdec_drafters():
        return [PluginSpec("drafter", "mine", "toy_mine:Mine", MineConfig)]
"""
FITTING = {
    "first": "",
    "about": '"""How large."""',
    "layers": "()",
    "summary": '"""Drafts nothing."""',
}
NAMES = ("spec-imports-no-torch", "settings-described", "hidden-states-declared")


@pytest.fixture
def announced(site):  # noqa: F811
    def install(**otherwise):
        site.install("specdec-mine", "toy_mine", PLUGIN.format(**(FITTING | otherwise)))
        return named("drafter", "mine")

    return install


def test_a_spec_that_fits(announced):
    assert [one.outcome for one in outcomes(announced(), *NAMES)] == ["passed"] * 3


@pytest.mark.parametrize(
    ("otherwise", "check", "message"),
    [
        ({"first": "import torch"}, "spec-imports-no-torch", "got:      torch was imported"),
        ({"about": ""}, "settings-described", "no description of size"),
        ({"summary": ""}, "settings-described", "no docstring of the class"),
        ({"layers": "(-1,)"}, "hidden-states-declared", "hidden_layers = (-1,), needs_hidden_states = False"),
    ],
)
def test_a_spec_that_does_not_fit(announced, otherwise, check, message, tmp_path, monkeypatch):
    (tmp_path / "torch.py").touch()  # a new process would take seconds to import the true one
    monkeypatch.syspath_prepend(str(tmp_path))
    names = NAMES if check == "spec-imports-no-torch" else NAMES[1:]  # else, nothing needs a process
    (failure,) = failures(announced(**otherwise), *names)
    assert failure.name == check
    assert message in failure.message


def test_checks_of_specs_are_skipped_without_one():
    from specdec_core.testing import DrafterSubject

    results = outcomes(DrafterSubject(lambda target: None), *NAMES[:2])
    assert [one.outcome for one in results] == ["skipped"] * 2
