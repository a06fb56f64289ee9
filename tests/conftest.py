"""What all tests share."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where models of the correctness suite run: cpu or cuda")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The device that `--device` names."""
    return str(request.config.getoption("--device"))


@pytest.fixture(autouse=True)
def _one_thread_each() -> None:
    # Tiny models run slower on many threads than on one, and tests must not fight over cores.
    import sys

    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
