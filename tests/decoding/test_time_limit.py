"""Calls into plugins that take long: named while they are waited for, and ended by `plugin_timeout`."""

from __future__ import annotations

import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from specdec_core import _time_limit
from specdec_core.decoding import Decoder
from specdec_core.decoding.guard import watch
from specdec_core.interface import DeterministicDrafter, PluginError
from specdec_core.interface.errors import ArgumentError
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models import wrap_model
from tests.drafters.chains import chain
from tests.tiny import tiny_model
from tests.toys import NO_CONFIG, CountingDrafter, Gamma, target_info

V = 40
PROMPTS = ([3, 4, 5], [7, 8])
SETTINGS = GenerationSettings(max_new_tokens=6, ignore_eos=True)
LIMIT = 0.05
pytestmark = pytest.mark.filterwarnings("ignore::specdec_core.PluginWarning")
posix = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signals here")


@pytest.fixture(scope="module")
def target():
    return wrap_model(tiny_model("llama", V))


@pytest.fixture(autouse=True)
def _short_ticks(monkeypatch):
    monkeypatch.setattr(_time_limit, "_TICK", LIMIT)
    monkeypatch.setattr(watch, "_PAUSE", LIMIT)


class Slow(DeterministicDrafter):
    """Does something before its second draft."""

    def __init__(self, wait):
        super().__init__(NO_CONFIG, target_info(V))
        self.wait, self.calls = wait, 0

    def draft(self, tokens, budget):
        self.calls += 1
        if self.calls == 2:
            self.wait()
        return [5] * budget


class SlowGamma(Gamma):
    def open(self, batch):
        time.sleep(60)


def stubborn():
    try:
        while True:
            time.sleep(0.001)
    except BaseException:
        time.sleep(60)


def texts(result):
    return [row.tokens for row in result.sequences]


@posix
@pytest.mark.parametrize("wait", [lambda: time.sleep(60), stubborn, threading.Event().wait])
def test_a_call_that_exceeds_the_limit_is_named_and_ends_as_the_plugins_failure(target, wait, capsys):
    plain = Decoder(target, temperature=0).generate(PROMPTS, SETTINGS)
    decoder = Decoder(target, Slow(wait), gamma=2, temperature=0, plugin_timeout=LIMIT)
    result = decoder.generate(PROMPTS, SETTINGS)
    assert texts(result) == texts(plain)
    (failure,) = result.failures
    assert failure.plugin == "Slow"
    assert failure.message == "the call took longer than 0.05 s (plugin_timeout)."
    assert failure.where.startswith("tests/decoding/test_time_limit.py:")
    named = r"specdec: waiting for Slow\.draft \(tests/decoding/test_time_limit\.py:\d+\) for 0\.\d+ s\n"
    assert re.match(named, capsys.readouterr().err)
    assert signal.getsignal(signal.SIGALRM) is not None
    assert not texts_differ_after(decoder, result)


def texts_differ_after(decoder, result):
    """Whether the same decoder gives another text once its plugin is no longer slow."""
    again = decoder.generate(PROMPTS, SETTINGS)
    return texts(again) != texts(result) or again.failures


@posix
def test_a_slow_controller_and_a_member_of_a_chain_are_named(target, capsys):
    slow = chain(Slow(lambda: time.sleep(60)), CountingDrafter(V), vocab=V)
    (failure,) = (
        Decoder(target, slow, gamma=2, temperature=0, plugin_timeout=LIMIT).generate(PROMPTS, SETTINGS).failures
    )
    assert "'Slow' (drafters[0]) failed in propose(): the call took longer than" in failure.message
    gamma = Decoder(target, CountingDrafter(V), gamma=SlowGamma(2), plugin_timeout=LIMIT)
    (failure,) = gamma.generate(PROMPTS, SETTINGS).failures
    assert failure.plugin == "SlowGamma"
    assert "waiting for SlowGamma.open" in capsys.readouterr().err
    with pytest.raises(PluginError, match=r"SlowGamma failed at step 0 .*: the call took longer than 0.05 s"):
        Decoder(target, CountingDrafter(V), gamma=SlowGamma(2), plugin_timeout=LIMIT, strict=True).generate(
            PROMPTS, SETTINGS
        )


@posix
def test_a_timer_that_runs_already_is_as_before(target):
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[1]
    drafter = Slow(lambda: time.sleep(60))
    for _ in Decoder(target, drafter, gamma=2, plugin_timeout=LIMIT).stream(PROMPTS, SETTINGS):
        assert before == (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[1])


@pytest.mark.parametrize("limit", [None, LIMIT])
def test_elsewhere_it_is_named_and_waited_for(target, limit, capsys, monkeypatch):
    monkeypatch.setattr(watch, "NOTICE", LIMIT)
    seen = []

    def wait():
        while not seen:
            seen.extend(capsys.readouterr().err.splitlines())
            time.sleep(0.01)

    decoder = Decoder(target, Slow(wait), gamma=2, temperature=0, plugin_timeout=limit)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(decoder.generate, PROMPTS, SETTINGS).result()
    assert not result.failures
    assert seen[0].startswith("specdec: waiting for Slow.draft (tests/decoding/test_time_limit.py:")


def test_what_no_plugin_does_is_not_limited(target, capsys):
    decoder = Decoder(target, CountingDrafter(V), gamma=2, temperature=0, plugin_timeout=LIMIT)
    for _ in decoder.stream(PROMPTS, SETTINGS):
        time.sleep(2 * LIMIT)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "10", True])
def test_a_limit_is_a_number_of_seconds(target, seconds):
    with pytest.raises(ArgumentError, match=r"plugin_timeout=.*a number above 0, or None"):
        Decoder(target, plugin_timeout=seconds)
