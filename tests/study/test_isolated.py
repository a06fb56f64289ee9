"""Runs in processes of their own: a crash costs one run, and nothing else changes."""

import subprocess
import sys

import pytest

from specdec_core.interface import ModelError
from specdec_core.study import compare
from specdec_core.study.run.runner import run_study
from tests.study.toy_study import STUDY, Recorder

pytestmark = pytest.mark.slow  # each process imports torch

CRASH = """
    import os, signal, sys
    from toy_parts import Echo as Whole

    class Echo(Whole):
        def draft(self, tokens, budget):
            print("a plugin prints")
            if len(tokens) > 9:
                {crash}
            return super().draft(tokens, budget)
"""
CRASHING = STUDY + "  - {{{{name: crashing, drafter: {{{{name: absent, token: 2}}}}, gamma: 1}}}}\n"


@pytest.fixture
def alone(toys, monkeypatch):
    """Let the processes of runs see the toys only, as this one does."""
    monkeypatch.setenv("SPECDEC_PLUGINS", "specdec-toys")
    return toys


def test_the_result_is_the_same_and_a_crash_costs_its_run_only(alone, study, tmp_path):
    alone.module("toy_nowhere", CRASH.format(crash="os.kill(os.getpid(), signal.SIGSEGV)"))
    loaded = study(CRASHING.replace("{{{{", "{{").replace("}}}}", "}}"))
    recorder = Recorder()
    result = run_study(loaded, recorder, output=tmp_path / "out", isolate=True)
    assert result.failed == {
        (None, "crashing"): "the process of crashing was ended by signal SIGSEGV in the middle of repeat 1."
    }
    together = run_study(study(), Recorder())
    expected, found = (
        {key: (one.outputs, one.metrics.drafted) for key, one in each.repeats.items()}
        for each in (together, result)
    )
    assert found == expected
    assert len((tmp_path / "out" / "repeats.jsonl").read_text().splitlines()) == 1 + 6
    again = run_study(loaded, Recorder(), output=tmp_path / "out", isolate=True)
    assert dict(again.repeats) == dict(result.repeats)


@pytest.mark.parametrize(
    ("crash", "said"),
    [
        ("os._exit(0)", "the process of crashing exited with code 0 in the middle of repeat 1."),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by signal SIGKILL in the middle of repeat 1."),
    ],
)
def test_how_a_process_ended_is_said(alone, study, crash, said):
    alone.module("toy_nowhere", CRASH.format(crash=crash))
    text = CRASHING.replace("{{{{", "{{").replace("}}}}", "}}")
    result = compare(study(text, "repeats=1", "runs=[{name: crashing, drafter: absent, gamma: 1}]"), isolate=True)
    assert result.exit_code == 2
    assert said in result.errors[0]
    assert result.rows[0].repeats == 1


def test_a_target_that_cannot_be_loaded_ends_the_study(alone, study, tmp_path):
    with pytest.raises(ModelError):
        run_study(study(STUDY, f"target={tmp_path}"), Recorder(), isolate=True)


def test_a_process_ends_with_its_study():
    worker = subprocess.Popen(
        [sys.executable, "-m", "specdec_core.study.run.isolated"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    worker.stdin.close()
    assert worker.wait(timeout=60) == 0
    worker.stdout.close()
