"""`benchmarks/gpu/run correctness`: the tests that use a device, on it. Each test that passed is not run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from plans import Job, LeftOutError, Run

ROOT = Path(__file__).parent.parent.parent
DECODING = "tests/decoding"
SUITES: dict[str, tuple[str, ...]] = {
    "device": ("tests/device",),
    "lossless": ("tests/test_lossless_drafters.py", DECODING),
    "captured": (
        *("--compile=device", "tests/models/test_session.py", "tests/test_lossless_drafters.py"),
        *(
            f"{DECODING}/test_{name}.py"
            for name in ("lossless_core", "greedy", "hidden_states", "beams", "threads")
        ),
    ),
    "kit": ("tests/testing/test_builtin_drafters.py", "-k", "conforms"),
    "two devices": ("tests/device/test_tokens.py", "-k", "cuda:1 or across or places"),
    "large samples": ("-m", "slow", "tests/test_lossless_drafters.py", DECODING),
    "rest": (
        *(f"tests/{name}" for name in ("models", "drafters", "plugins", "interface", "offline")),
        *("-k", "not an_untied_output and not (has_it_loaded and translation)"),
    ),
}
"""What pytest runs, what matters most first. Nothing loads the T5 target, which may have been left behind."""
FEW: dict[str, tuple[str, ...]] = {
    "device": ("tests/device/test_tokens.py", "-k", "looks_at_the_clock"),
    "lossless": ("tests/models/test_session.py", "-k", "rollback"),
    "captured": ("--compile=fixed", "tests/models/test_session.py", "-k", "rollback"),
}


def jobs(run: Run) -> list[Job]:
    """Return the suites."""
    suites = FEW if run.plan.few else SUITES
    if run.device == "cpu":
        suites = {name: words for name, words in suites.items() if name != "device"}
    return run.selected([({"suite": name}, lambda name=name: tested(run, name, suites[name])) for name in suites])


def tested(run: Run, suite: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Run a suite, but for what passed before; return how many tests passed, and which failed.

    Raises:
        LeftOutError: There was no time for all of it.
        RuntimeError: Some failed, or pytest did.
    """
    if suite == "two devices" and run.real and torch.cuda.device_count() < 2:
        raise LeftOutError("there is one GPU")
    path = run.outcomes.with_name(f"{suite.replace(' ', '-')}-{run.outcomes.name}").resolve()
    passed = path.with_suffix(".passed")
    passed.write_text("\n".join(name for name, one in outcomes(path).items() if one == "passed"), encoding="utf-8")
    seconds = max(run.left - 15, 5)  # without starting and ending
    command = [sys.executable, "-m", "pytest", f"--device={run.asked}", f"--session-timeout={seconds:.0f}"]
    command += [
        "-p",
        "outcomes",
        "--tb=short",
        "--color=no",
        "-n",
        "0" if run.plan.few else str(run.workers),
        *words,
    ]
    # A worker of pytest-xdist that runs this must not be taken for one of the suite's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"GPU_OUTCOMES": str(path), "GPU_PASSED": str(passed)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    passed.unlink()
    found = outcomes(path)
    counts = Counter(found.values())
    if counts and done.returncode in (0, 5):  # 5: all of them passed before
        return dict(counts)
    failed = [name for name, one in found.items() if one == "failed"]
    if failed:
        raise RuntimeError(f"{dict(counts)}: {', '.join(failed[:20])}; see {path.name}")
    if "session-timeout" in done.stdout:
        raise LeftOutError(f"stopped after {seconds:.0f} s, {dict(counts)}")
    raise RuntimeError((done.stdout + done.stderr)[-2000:])


def outcomes(path: Path) -> dict[str, str]:
    """Return the last outcome of each test."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found: dict[str, str] = {}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # the last one, if the process was killed while it was written
            continue
        found[row["test"]] = row["outcome"]
    return found
