"""Options and fixtures that all tests share."""

import gc
import os
import sys
from collections.abc import Iterator

import hypothesis  # before the heap is frozen: it asks the collector who refers to an object of trio
import pytest

# Tests start processes that import torch, and each would compile it for seven seconds if none kept the result.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Torch, transformers and the tests make so many objects that the collector would look at them for a quarter of the
# time in which tests are collected, and for a tenth of that in which they run.
gc.disable()

# The tests run as any user, who may not be allowed to write into the checkout.
hypothesis.settings.register_profile(
    "default",
    database=None,
    max_examples=40,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("default")

NO_DEVICE = pytest.StashKey[str | None]()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what is there by now to itself, and look for garbage among what tests make."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        default="cpu",
        help="device of the correctness tests: cpu, cuda (simulated where there is none) or cuda:simulated",
    )
    parser.addoption(
        "--compile", choices=("fixed", "symbolic", "device"), help="let all models run static forward passes"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Simulate a GPU where `--device` asks for one and there is none."""
    if config.getoption("--compile") is not None:  # of all that is not verified, or drafted, in a captured pass
        config.addinivalue_line("filterwarnings", "ignore:compile.*(verified after|captured pass by pass)")
    if config.getoption("--device").startswith("cuda"):
        from tests import simulated_gpu

        config.stash[NO_DEVICE] = simulated_gpu.prepare(config.getoption("--device"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On another device than the CPU, run what uses the device: the rest has nothing to do with it."""
    if config.getoption("--compile") is not None:
        skip = pytest.mark.skip(reason="needs eager forward passes")
        for item in items:
            if item.get_closest_marker("eager"):
                item.add_marker(skip)
    if config.getoption("--device") != "cpu":
        unused = [item for item in items if "device" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=unused)
        items[:] = [item for item in items if "device" in getattr(item, "fixturenames", ())]
        if (reason := config.stash.get(NO_DEVICE, None)) is not None:
            for item in items:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Return the device that `--device` names."""
    return str(request.config.getoption("--device")).removesuffix(":simulated")


@pytest.fixture(scope="module")
def target(device: str) -> object:
    """Return the target whose continuations `tests.lossless` enumerates."""
    from tests.lossless import small_target

    return small_target(device)


@pytest.fixture(scope="session", autouse=True)
def _compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    kind = request.config.getoption("--compile")
    with pytest.MonkeyPatch.context() as patch:
        if kind is not None:
            from tests.compiled import compile_everything

            compile_everything(patch, kind)
        yield


@pytest.fixture(autouse=True)
def _one_thread_each() -> None:
    # Tiny models run slower on many threads than on one, and parallel workers share the cores.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no setting of the terminal or of a CI service change what is printed.

    Workers of xdist set COLUMNS, and pytest prints its summary in full where CI or BUILD_NUMBER is set.
    """
    for name in ("COLUMNS", "CI", "BUILD_NUMBER", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
