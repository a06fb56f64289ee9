"""Signals end a command in order, at any moment; a second one ends it at once."""

import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

START = "from specdec_core.cli.start import main; main()"
# Stops where a real command would be busy; a deaf one goes on after a signal.
BUSY = """
import sys, time
from specdec_core.cli import listing, start

def busy(study, *_, **__):
    try:
        print("busy", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        if study.name == "replaced":  # as pydantic does while it builds a schema
            raise ValueError("Stopped:") from None
        if study.name != "deaf":
            raise
        print("deaf", flush=True)
        time.sleep(60)

listing.load_study = busy
sys.argv = ["specdec", "validate", *sys.argv[1:]]
start.main()
"""


def ended(code, number, *arguments, times=1):
    """Return the exit code and standard error of a process that gets a signal whenever it has written a line."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(times):
            assert process.stdout.readline()
            process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_command_as_ctrl_c_does(name):
    number = getattr(signal, name)
    assert ended(BUSY, number, "study") == (128 + number, "stopped.\n")


def test_a_signal_is_reported_as_such_if_a_library_replaces_its_exception():
    assert ended(BUSY, signal.SIGTERM, "replaced") == (143, "stopped.\n")


def test_a_second_signal_ends_a_command_that_does_not_listen():
    assert ended(BUSY, signal.SIGINT, "deaf", times=2) == (130, "stopped.\n")


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
    assert ended(held + START, signal.SIGINT) == (130, "stopped.\n")


def test_a_signal_that_was_ignored_stays_so():
    ignored = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from specdec_core.cli import main, start
main.main = lambda: print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
start.main()
"""
    shown = subprocess.run([sys.executable, "-c", ignored], capture_output=True, text=True)
    assert shown.stdout == "True\n", shown.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_full_standard_output_is_one_line():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [sys.executable, "-c", START, "schema"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "standard output cannot be written: No space left on device.\n")


@pytest.mark.slow
def test_commands_end_with_the_number_of_the_signal_in_the_middle_of_their_work(tmp_path):
    trained = f"--output={tmp_path / 'n.arpa'}"
    stages = {  # in which each command is stopped
        ("measure", "--tokens=1000000", "--drafter=prompt-copy", "--device=cpu"): "prompt-copy: acceptance",
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
