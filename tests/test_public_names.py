"""The names that `import specdec_core` offers, and the modules that import no torch."""

import importlib
import pkgutil
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

    assert 40 <= len(interface.__all__) <= 45
    assert all(hasattr(interface, name) for name in interface.__all__)
    assert {"Decoder", "compare", "load_model"} < set(specdec_core.__all__)
