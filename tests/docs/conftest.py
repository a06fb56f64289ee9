"""Shared by the tests of the pages: the built site, a browser, and the example packages as if installed."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from specdec_core.registry.registry import default_registry
from tests.docs.hub import SmallHub
from tests.docs.pages import ROOT, load
from tests.drafters.assistants import assistants_built
from tests.packages import install


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The folder of the site, built strictly, once for all workers."""
    pytest.importorskip("mkdocs", reason="the extra `docs` installs it")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "site"
    with FileLock(shared / "site.lock"):
        if not (folder / "index.html").exists():
            os.environ["NO_MKDOCS_2_WARNING"] = "1"
            config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
            config.plugins.on_startup(command="build", dirty=False)
            build(config)
    return folder


@pytest.fixture(scope="module")
def chrome():
    """A Chromium that can only open files."""
    pytest.importorskip("selenium", reason="the extra `browser` installs it")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("Chromium is not installed")
    with load(ROOT / ".ci" / "check_site.py").browser() as chrome:
        yield chrome


@pytest.fixture(scope="session")
def example_packages(tmp_path_factory) -> Path:
    """A folder with the packages of docs/examples, as pip would install them."""
    folder = tmp_path_factory.mktemp("installed")
    examples = ROOT / "docs" / "examples"
    install(folder, [examples / f"specdec-{name}" for name in ("recent", "follow", "floor", "pairs", "samples")])
    (folder / "parts.py").write_bytes((examples / "parts.py").read_bytes())
    return folder


@pytest.fixture
def installed(example_packages, monkeypatch):
    """The default registry, with the plugins of the example packages in it."""
    monkeypatch.syspath_prepend(str(example_packages))
    monkeypatch.delenv("SPECDEC_PLUGINS", raising=False)
    default_registry.cache_clear()
    yield default_registry()
    default_registry.cache_clear()


@pytest.fixture(scope="session")
def hub(tmp_path_factory) -> Iterator[SmallHub]:
    """Small models in the place of those of the hub that pages name."""
    with assistants_built():
        yield SmallHub(tmp_path_factory.mktemp("hub"))
