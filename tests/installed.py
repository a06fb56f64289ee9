"""Distributions installed for one test: real files in a temporary folder, found like any installed ones."""

import importlib
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import EntryPoint, distribution, distributions
from pathlib import Path
from types import ModuleType

import pytest

from specdec_core.registry import registry
from specdec_core.registry.registry import Registry, default_registry

TOYS = """
    from typing import Annotated
    from pydantic import Field
    from specdec_core import DrafterConfig, PluginConfig, PluginSpec, hookimpl
    from specdec_core.interface import LenienceConfig

    class EchoConfig(DrafterConfig):
        \"\"\"Always the same token.\"\"\"
        token: Annotated[int, Field(ge=0)] = 1
        breaks: bool = False

    class SingleConfig(EchoConfig):
        targets = "decoder-only"

    class FixedConfig(PluginConfig):
        \"\"\"Fixed.\"\"\"
        gamma: Annotated[int, Field(ge=0)] = 3

    class ConstantConfig(LenienceConfig):
        lenience: Annotated[float, Field(gt=0, le=1)] = 1.0

    @hookimpl
    def specdec_drafters():
        return [
            PluginSpec("drafter", "echo", "toy_parts:Echo", EchoConfig),
            PluginSpec("drafter", "single", "toy_parts:Echo", SingleConfig),
            PluginSpec("drafter", "absent", "toy_nowhere:Echo", EchoConfig),
        ]

    @hookimpl
    def specdec_gamma_controllers():
        return [PluginSpec("gamma", "fixed", "toy_parts:Fixed", FixedConfig, shorthand="gamma")]

    @hookimpl
    def specdec_lenience_controllers():
        return [PluginSpec("lenience", "constant", "toy_parts:Constant", ConstantConfig, shorthand="lenience")]
"""

PARTS = """
    from specdec_core import DeterministicDrafter, GammaController, GammaSession
    from specdec_core import LenienceController, LenienceSession

    class Echo(DeterministicDrafter):
        def draft(self, tokens, budget):
            if self.config.breaks:
                raise RuntimeError("the echo broke")
            return [self.config.token] * budget

    class Fixed(GammaController):
        @property
        def max_gamma(self):
            return self.config.gamma

        def open(self, batch):
            return _Always([self.config.gamma] * batch.batch_size)

    class _Always(GammaSession):
        def __init__(self, values):
            self.values = values

        def plan(self):
            return self.values

    class Constant(LenienceController):
        def open(self, batch):
            return _Constantly([self.config.lenience] * batch.batch_size)

    class _Constantly(LenienceSession):
        def __init__(self, values):
            self.values = values

        def lenience(self):
            return self.values
"""


class Site:
    """A folder of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self, distribution: str, module: str, source: str, *, version: str = "1.0", requires: str | None = None
    ) -> None:
        """Install a distribution with one plugin module."""
        self.module(module, source)
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = "" if requires is None else f"Requires-Dist: {requires}\n"
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{needs}"
        (info / "METADATA").write_text(metadata)
        (info / "entry_points.txt").write_text(f"[specdec]\n{module} = {module}\n")
        default_registry.cache_clear()
        importlib.invalidate_caches()

    def module(self, name: str, source: str) -> None:
        """Write a module, which is imported anew."""
        sys.modules.pop(name, None)
        (self.folder / f"{name}.py").write_text(textwrap.dedent(source))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Return an empty folder for distributions. It hides those of the environment, except the built-in models."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    # What is compiled would be a file that nobody installed, and old where a module changes within a second.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("SPECDEC_PLUGINS", raising=False)

    built_in = distribution("specdec-core").entry_points.select(group="specdec", name="models")

    def entry_points(group: str) -> list[EntryPoint]:
        there = distributions(path=[str(folder)])
        return [*built_in, *(entry for dist in there for entry in dist.entry_points if entry.group == group)]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    before = set(sys.modules)
    default_registry.cache_clear()
    yield Site(folder)
    default_registry.cache_clear()
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(folder) in str(sys.modules[name].__file__):
            del sys.modules[name]


_TOYS: list[tuple[Registry, dict[str, ModuleType]]] = []
"""The toys as they were installed first: models of studies are made for a registry, which takes long."""


@pytest.fixture
def toys(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Install `specdec-toys`, with drafters and controllers, as the only plugins."""
    site.module("toy_parts", PARTS)
    site.install("specdec-toys", "toy_plugin", TOYS)
    if not _TOYS:
        modules = {name: importlib.import_module(name) for name in ("toy_parts", "toy_plugin")}
        _TOYS.append((default_registry(), modules))
    found, modules = _TOYS[0]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    default_registry.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(registry, "Registry", lambda: found)
        default_registry()
    return site
