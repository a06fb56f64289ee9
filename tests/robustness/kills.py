"""A study that is killed at a random moment goes on where it was, and ends with the same outputs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import yaml

from tests.robustness.attack import BrokenError
from tests.robustness.folders import STUDY, model, results

_START = 0.3
"""Seconds within which Python starts."""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def kills(random: Random, folder: Path) -> Iterator[str]:
    """`specdec compare` gets a signal, perhaps twice, and is started again."""
    (folder / "study.yaml").write_text(yaml.safe_dump({**STUDY, "repeats": 20, "target": str(model())}))
    _, outputs = results()
    for _ in range(random.randint(1, 2)):
        sent, after = random.choice(SIGNALS), random.choice([0.2, 1, 3, 5, 6, 7]) * random.random() * 2
        yield f"{sent.name} after {after:.2f} s"
        process = _compare(folder)
        time.sleep(after)
        process.send_signal(sent)
        _, said = process.communicate(timeout=30)
        if "Traceback" in said and after >= _START:
            raise BrokenError(f"a traceback: {said.strip().splitlines()[-1]}")
        # Until Python runs the program's own code, and when all is written, a signal ends it as any other.
        outside = {-sent} if sent is signal.SIGKILL or after < _START or "report.html" in said else set()
        if process.returncode not in {0, 128 + sent} | outside:
            raise BrokenError(f"exit code {process.returncode} after {sent.name}: {said.strip()[-100:]}")
    last = _compare(folder)
    _, said = last.communicate(timeout=50)
    if last.returncode:
        raise BrokenError(f"cannot be resumed: {said.strip()[-200:]}")
    entries = [json.loads(line) for line in (folder / "out/repeats.jsonl").read_text().splitlines()[1:]]
    if sorted(len({(one["run"], one["repeat"])}) for one in entries) != [1] * 60:
        raise BrokenError(f"{len(entries)} repeats are stored, of 60")
    if len({(one["run"], one["repeat"]) for one in entries}) != 60:
        raise BrokenError("a repeat is stored twice")
    if (folder / "out/outputs.jsonl").read_bytes() != outputs:
        raise BrokenError("other outputs")
    if left := [one.name for one in (folder / "out").iterdir() if one.name.endswith(".part")]:
        raise BrokenError(f"left behind: {left}")


def _compare(folder: Path) -> subprocess.Popen[str]:
    command = [Path(sys.executable).parent / "specdec", "compare", "study.yaml", "--output", "out"]
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
