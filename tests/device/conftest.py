"""Tests that need a CUDA device, real or simulated: the run on the CPU leaves them out."""

from pathlib import Path

import pytest

from tests import simulated_gpu


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if config.getoption("--device").startswith("cuda") else True


@pytest.fixture(autouse=True)
def _on_the_device(device: str) -> None:
    """Let each test use the device, so that `--device` selects it."""


@pytest.fixture
def simulated(device: str) -> None:
    if not simulated_gpu.installed():
        pytest.skip("counts what the simulated GPU does: --device cuda:simulated")
