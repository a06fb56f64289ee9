"""Settings of torch and of the process that a plugin leaves changed: the core names it and goes on as before."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from specdec_core.decoding import Decoder
from specdec_core.decoding.guard.global_settings import OF_PROCESS, OF_THREAD, read, restore
from specdec_core.interface import DeterministicDrafter, PluginError
from specdec_core.models import wrap_model
from tests.tiny import tiny_model
from tests.toys import NO_CONFIG, Gamma, target_info

V = 40
pytestmark = pytest.mark.filterwarnings("ignore::specdec_core.PluginWarning")

CHANGES = {
    "torch's autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "the working directory": lambda: os.chdir("/"),
    "signal handlers": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
}


class Changing(DeterministicDrafter):
    """Changes a setting, then drafts."""

    def __init__(self, change):
        super().__init__(NO_CONFIG, target_info(V))
        self.change = change

    def draft(self, tokens, budget):
        self.change()
        return [5] * budget


class ChangingGamma(Gamma):
    """Changes a setting when a batch begins."""

    def __init__(self, change):
        super().__init__(3)
        self.change = change

    def open(self, batch):
        self.change()
        return super().open(batch)


@pytest.fixture(scope="module")
def target():
    return wrap_model(tiny_model("llama", V))


@pytest.fixture(autouse=True)
def settings():
    """What the settings were, which they are after each test, whatever it does."""
    before = read((*OF_THREAD, *OF_PROCESS))
    yield before
    restore((*OF_THREAD, *OF_PROCESS), before)


def decoded(target, drafter=None, gamma=3, **settings):
    decoder = Decoder(target, drafter, gamma=drafter and gamma, temperature=0, **settings)
    return decoder.generate([[3, 4, 5], [7, 8]], max_new_tokens=12, ignore_eos=True)


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_drafter_leaves_changed_is_named_and_restored(target, settings, name):
    undisturbed = decoded(target, Changing(lambda: None))
    result = decoded(target, Changing(CHANGES[name]))
    assert [row.tokens for row in result] == [row.tokens for row in undisturbed]
    assert read((*OF_THREAD, *OF_PROCESS)) == settings
    failure, *others = result.failures  # a draft on the device meta is a failure of its own
    assert failure.plugin == "Changing"
    assert bool(others) == (name == "torch's default device")
    assert f"it changed {name} and left it so" in failure.message


@pytest.mark.parametrize("name", ["torch's autocast", "torch's default dtype"])
def test_a_controller_that_changes_torch_is_named_and_still_asked(target, settings, name):
    undisturbed = decoded(target, Changing(lambda: None))
    result = decoded(target, Changing(lambda: None), ChangingGamma(CHANGES[name]))
    assert [row.tokens for row in result] == [row.tokens for row in undisturbed]
    assert result.metrics.drafted == undisturbed.metrics.drafted
    assert [failure.plugin for failure in result.failures] == ["ChangingGamma"]
    assert read((*OF_THREAD, *OF_PROCESS)) == settings


def test_strict_raises_and_restores(target, settings):
    with pytest.raises(PluginError, match="Changing failed at step 0: it changed torch's default device"):
        decoded(target, Changing(CHANGES["torch's default device"]), strict=True)
    assert read((*OF_THREAD, *OF_PROCESS)) == settings


def test_a_device_that_was_entered_and_not_left_is_overruled(target, settings):
    left = []

    def enter():
        left.append(torch.device("meta"))
        left[-1].__enter__()

    result = decoded(target, Changing(enter))
    assert {failure.plugin for failure in result.failures} == {"Changing"}
    assert torch.empty(0).device.type == "cpu"


def test_settings_of_the_caller_stay(target):
    torch.set_default_dtype(torch.float64)
    result = decoded(target, Changing(CHANGES["torch's autocast"]))
    assert torch.get_default_dtype() == torch.float64
    assert len(result.failures) == 1
