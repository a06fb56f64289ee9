"""A Ray cluster of two workers on this machine."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def two_workers() -> Iterator[str]:
    """Start a cluster that runs two jobs at a time; its workers import the tests. Return its address."""
    import ray

    root = str(Path(__file__).parents[2])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [before])])
    context = ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    yield context.address_info["address"]
    ray.shutdown()
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
