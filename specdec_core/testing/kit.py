"""The base of the kits: a class of tests that builds the plugin under test."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import pytest
import torch

from specdec_core.interface import ConfigError, PluginConfig, PluginSpec
from specdec_core.interface.spec import PluginKind
from specdec_core.registry.hookspecs import KIND_LABELS
from specdec_core.registry.registry import default_registry
from specdec_core.registry.settings_models import plugin_settings
from specdec_core.testing.failures import CheckFailure, calling
from specdec_core.testing.harness.state import changed_globals, restored_globals
from specdec_core.testing.harness.tiny_target import TinyTarget, discard_modified, tiny_target

T = TypeVar("T")


class Kit:
    """Base of all kits: its tests are the checks of a kind of plugin.

    A subclass names an installed plugin, or overrides `make`. Where a check is known to fail, override it: mark it
    with `pytest.mark.xfail`, and call `super()`.
    """

    kind: ClassVar[PluginKind]
    plugin: ClassVar[str | None] = None
    """Name of an installed plugin; None if `make` is overridden."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the installed plugin, as in a study."""
    seed: ClassVar[int] = 0
    """Seed of all random numbers that the checks use."""
    device: ClassVar[str] = "cpu"
    """Device of the targets that the plugin is checked on."""

    _spec: ClassVar[PluginSpec | None] = None
    _read: ClassVar[PluginConfig | None] = None
    _built: ClassVar[dict[Any, Any]] = {}

    def __init_subclass__(cls) -> None:
        """Find the plugin and read its settings.

        Raises:
            PluginError: The plugin does not exist; the message lists near misses.
            ConfigError: The settings are not valid.
        """
        cls._built = {}
        if cls.plugin is not None:
            cls._spec = default_registry().spec(cls.kind, cls.plugin)
            cls._read = plugin_settings(default_registry(), cls.kind, {**cls.settings, "name": cls.plugin})

    def make(self, *target: Any) -> Any:
        """Build the plugin: a drafter for a `TargetInfo`, anything else without arguments. Override it."""
        if self.plugin is None or self._read is None:
            raise ConfigError(
                f"{type(self).__name__}: name an installed plugin (`plugin = ...`) or override `make`."
            )
        return default_registry().create(self.kind, self.plugin, self._read, *target)

    @pytest.fixture(autouse=True)
    def _restored(self) -> Iterator[None]:
        """Keep what a plugin changes in the process and in the targets from other checks."""
        with restored_globals():
            torch.set_num_threads(1)  # tiny models are several times slower on two
            yield
        discard_modified()

    def build(self, base: type[T], *target: Any) -> T:
        """Build the plugin.

        Args:
            base: The class that it must derive from.
            target: The arguments of `make`.

        Raises:
            CheckFailure: It cannot be built, does not derive from the base class, or did not call its constructor.
        """
        did = f"built the {KIND_LABELS[self.kind]}"
        with calling(did, f"a {base.__name__}"):
            plugin = self.make(*target)
        if not isinstance(plugin, base):
            raise CheckFailure(did, f"{type(plugin).__name__}: {plugin!r}", f"a {base.__name__}")
        if not hasattr(plugin, "config") or (target and not hasattr(plugin, "target")):
            arguments = "config, target" if target else "config"
            name = type(plugin).__name__
            hint = f"In {name}.__init__ call super().__init__({arguments})."
            raise CheckFailure(did, f"a {name} without {arguments}", "what the base class sets", hint)
        return plugin

    def once(self, key: object, function: Callable[[], T]) -> T:
        """Return the function's result, which the class keeps under this key."""
        if key not in self._built:
            self._built[key] = function()
        result: T = self._built[key]
        return result

    @property
    def target(self) -> TinyTarget:
        """The tiny target that the plugin is checked on."""
        return tiny_target(device=self.device)

    def require_globals_unchanged(self, did: str, before: Mapping[str, Any]) -> None:
        """Fail if a setting of torch or of the process differs from what it was."""
        changed = changed_globals(before)
        if changed:
            hint = "Restore settings. Draw with the request, or with a random generator of your own."
            raise CheckFailure(did, f"changed: {', '.join(changed)}", "no change", hint)

    def test_spec_imports_no_torch(self) -> None:
        """Listing it and reading its settings import no torch."""
        spec = self._described()
        record = next(
            one for one in default_registry().records() if (one.kind, one.name) == (spec.kind, spec.name)
        )
        code = (
            "import sys\nfrom specdec_core import default_registry\n"
            f"default_registry().spec({spec.kind!r}, {spec.name!r}).config.model_json_schema()\n"
            "sys.exit('torch' in sys.modules)"
        )
        paths = os.pathsep.join(path for path in sys.path if path)
        env = os.environ | {"PYTHONPATH": paths, "SPECDEC_PLUGINS": record.entry_point}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CheckFailure(
                f"listed {record.entry_point!r} in a new process, and read the settings of {spec.name!r}",
                done.stderr.strip() or "torch was imported",
                "neither torch nor an error",
                "Every command imports the module of the entry point and that of the settings. Import torch, "
                "transformers and the like in another module, or inside functions.",
            )

    def test_settings_described(self) -> None:
        """Its settings have a docstring, and each setting a description."""
        spec = self._described()
        missing = [name for name, field in spec.config.model_fields.items() if not field.description]
        missing += [] if spec.summary else ["the class"]
        if missing:
            raise CheckFailure(
                f"read the docstrings of {spec.config.__name__}",
                f"no description of {', '.join(missing)}",
                "a docstring of the class, whose first line is the summary, and one under each field",
            )

    def _described(self) -> PluginSpec:
        if self._spec is None:
            pytest.skip("it is built by `make`, and has no PluginSpec")
        return self._spec
