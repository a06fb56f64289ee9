"""Signals end a command in order, at any moment."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from specdec_core.cli import listing, start
from tests.commands import run_command

# `nohup` and background jobs ignore these signals, and children inherit that.
HEEDED = "import signal; [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)]\n"
START = HEEDED + "from specdec_core.cli.start import main; main()"
NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def heeded():
    """Let signals be handled here as in a command, whatever handles them otherwise."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in NUMBERS}
    start._handle(start._stop)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    start.Stopped.received = None


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("replaced", [False, True], ids=["as it is", "replaced by a library"])
def test_a_signal_ends_a_command_as_ctrl_c_does(heeded, monkeypatch, number, replaced):
    def busy(*_, **__):
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        except KeyboardInterrupt:
            if replaced:  # as pydantic does while it builds a schema
                raise ValueError("Stopped:") from None
            raise

    monkeypatch.setattr(listing, "load_study", busy)
    result = run_command("validate", "study.yaml")
    assert (result.exit_code, result.stderr) == (128 + number, "stopped.\n")


def test_a_signal_that_was_ignored_stays_so(heeded):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    start._handle(start._stop)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_signal_during_the_imports_prints_no_traceback():
    # The import that the start waits for, held up.
    held = """
import sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == "specdec_core.cli.main":
            print("importing", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
"""
    command = [sys.executable, "-c", held + START]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "stopped.\n")


@pytest.mark.slow
def test_commands_end_with_the_number_of_the_signal_in_the_middle_of_their_work(tmp_path):
    trained = f"--output={tmp_path / 'n.arpa'}"
    stages = {  # in which each command is stopped
        ("measure", "--drafter=prompt-copy", "--device=cpu"): "T = 0: recording",
        ("train", "ngram", "--samples=1000000", trained): "target writes",
    }
    with ExitStack() as processes:
        starting = []
        for command in stages:
            words = [sys.executable, "-c", START, *command]
            process = processes.enter_context(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
            processes.callback(process.kill)
            starting.append(process)
        for process, stage in zip(starting, stages.values(), strict=True):
            assert any(line.startswith(stage) for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 128 + signal.SIGTERM, errors
            assert errors.startswith("stopped")
