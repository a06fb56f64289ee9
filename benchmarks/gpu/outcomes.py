"""A plugin of pytest that writes the outcome of each test as it ends, and leaves out those that passed before.

GPU_OUTCOMES names the file, one JSON object per line, and GPU_PASSED one with the names of tests to leave out: a
file of its own, which does not grow while workers collect the tests.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what passed."""
    passed = set(Path(os.environ["GPU_PASSED"]).read_text(encoding="utf-8").splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of a test, once: of its call, or of what failed or was skipped around it."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    row = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)}
    if report.failed:
        row["why"] = str(report.longreprtext)[-1500:]
    with Path(os.environ["GPU_OUTCOMES"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
