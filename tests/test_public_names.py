"""The names that `import specdec_core` offers, and the modules that import no torch."""

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import specdec_core


@pytest.mark.parametrize("name", specdec_core.__all__)
def test_every_public_name_exists(name):
    assert getattr(specdec_core, name) is not None
    assert name in dir(specdec_core)


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="has no attribute 'Decodr'"):
        specdec_core.Decodr  # noqa: B018


LIGHT = (
    "specdec_core",
    "specdec_core.interface",
    "specdec_core.interface.files",
    "specdec_core.registry",
    "specdec_core.models.load.model_requirements",
    "specdec_core.theory",
    "specdec_core.costs",
    "specdec_core.study",
    "specdec_core.cli.main",
    "specdec_drafters.plugin",
    "specdec_plugins.plugin",
    "specdec_models.plugin",
)


def test_listing_and_validating_import_neither_torch_nor_pytest():
    code = f"""
import importlib, sys
for name in {LIGHT}:
    importlib.import_module(name)
    assert "torch" not in sys.modules, name
    assert "pytest" not in sys.modules, name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_a_module_hides_no_public_name():
    """A package gets its modules as attributes, also one with the name of a function that it offers."""
    for package in pkgutil.walk_packages(specdec_core.__path__, "specdec_core."):
        if package.ispkg:
            loaded = importlib.import_module(package.name)
            modules = {one.name for one in pkgutil.iter_modules(loaded.__path__)}
            for name in modules & set(getattr(loaded, "__all__", ())):
                importlib.import_module(f"{package.name}.{name}")
                assert not isinstance(getattr(loaded, name), ModuleType), f"{package.name}.{name}"


def test_the_plugin_interface_is_small():
    from specdec_core import interface

    assert len(interface.__all__) <= 45
    assert all(hasattr(interface, name) for name in interface.__all__)
