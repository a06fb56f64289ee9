"""The kits for pytest: subclass one, or decorate a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from inspect import getattr_static
from typing import Any, ClassVar, TypeVar

import pytest

from specdec_core.interface import PluginConfig
from specdec_core.interface.errors import SpecdecError
from specdec_core.interface.spec import PluginKind
from specdec_core.registry import KIND_LABELS, default_registry
from specdec_core.testing.check_runner import run_check
from specdec_core.testing.registration import TIMEOUT, Check, checks_for, require_known
from specdec_core.testing.subject import Subject
from specdec_core.testing.subjects import SUBJECTS, named, subject_of

Function = TypeVar("Function", bound=Callable[..., None])

_SUBJECT = pytest.StashKey[Subject]()
"""Stores a class's subject for as long as pytest runs the class."""


class _Kit:
    """Base of all kits: one test per check."""

    kind: ClassVar[PluginKind]

    plugin: ClassVar[str | None] = None
    """Name of an installed plugin; None if the fixture `make` says how to build one."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the installed plugin, as in a study."""
    config: ClassVar[type[PluginConfig]] = PluginConfig
    """Class of the settings of a plugin that `make` builds. An installed plugin has it in its spec."""
    expected_failures: ClassVar[Mapping[str, str]] = {}
    """Checks that are known to fail, each with the reason. If one passes, its test fails."""
    require: ClassVar[tuple[str, ...]] = ()
    """Optional checks that count."""
    timeout: ClassVar[float | None] = TIMEOUT
    """Seconds that each check may take; None for no limit."""
    seed: ClassVar[int] = 0
    """Seed of all random numbers that the checks use."""
    device: ClassVar[str] = "cpu"
    """Device of the targets that the plugin is checked on."""

    @pytest.fixture
    def make(self) -> Callable[..., Any] | None:
        """Return a function that builds the plugin. Override it, or name an installed plugin."""
        return None

    @pytest.fixture
    def subject(self, make: Callable[..., Any] | None, request: pytest.FixtureRequest) -> Subject:
        """Return the plugin under test. All tests of a class share one, so that it is built once."""
        stash = request.node.parent.stash
        if _SUBJECT not in stash:
            stash[_SUBJECT] = self._subject(make)
        subject: Subject = stash[_SUBJECT]
        return subject

    def _subject(self, make: Any) -> Subject:
        if self.plugin is not None and make is None:
            return named(self.kind, self.plugin, self.settings, seed=self.seed, device=self.device)
        spec = None if self.plugin is None else default_registry().spec(self.kind, self.plugin)
        config = self.config if spec is None else spec.config
        return subject_of(self.kind, make, config=config, seed=self.seed, spec=spec, device=self.device)

    def test_conforms(self, check: Check, subject: Subject) -> None:
        """Run one check."""
        __tracebackhide__ = True
        run_check(
            check, subject, expected_failures=self.expected_failures, require=self.require, timeout=self.timeout
        )

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one test per check; reject a class that cannot run."""
        if "check" not in metafunc.fixturenames:
            return
        try:
            _require_known_attributes(type(self))
            # A function stands in for the result of `make`: names, settings and devices are rejected.
            self._subject(_placeholder if _overrides_make(type(self)) else None)
            require_known(self.kind, self.expected_failures, "expected_failures")
            require_known(self.kind, self.require, "require")
        except SpecdecError as error:
            raise pytest.Collector.CollectError(f"{type(self).__name__}: {error}") from None
        metafunc.parametrize("check", checks_for(self.kind), ids=lambda one: one.name)


def _placeholder(*arguments: object) -> None:
    """Stands in for the result of the fixture `make` during collection."""


def _overrides_make(cls: type[_Kit]) -> bool:
    """Whether a kit class overrides the fixture `make`. Reject one that neither does nor names a plugin."""
    make, default = getattr_static(cls, "make"), vars(_Kit)["make"]
    if not isinstance(make, type(default)) or (make is default and cls.plugin is None):
        raise SpecdecError(
            f'it has nothing to check. Name an installed {KIND_LABELS[cls.kind]} (`plugin = "..."`), or override '
            f"the fixture `make`, with @pytest.fixture above it. It must return {SUBJECTS[cls.kind].make_must_be}."
        )
    return make is not default


def _require_known_attributes(cls: type[_Kit]) -> None:
    """Reject attributes of a kit class whose names are nearly those of a kit."""
    known = [*_Kit.__annotations__, "make", "subject"]
    for base in cls.__mro__[: cls.__mro__.index(_Kit) - 1]:
        for name in vars(base):
            near = get_close_matches(name.lower(), known, n=1, cutoff=0.75)
            if near and name not in known and not name.startswith(("_", "test")):
                raise SpecdecError(
                    f"a kit has no attribute {name}. Did you mean {near[0]!r}? It has {', '.join(known)}. "
                    "Begin your own names with an underscore."
                )


class DrafterKit(_Kit):
    """Checks a drafter. Its tests are called `test_conforms[budget-respected]` and so on."""

    kind = "drafter"


class GammaKit(_Kit):
    """Checks a gamma controller."""

    kind = "gamma"


class LenienceKit(_Kit):
    """Checks a lenience controller."""

    kind = "lenience"


class RuleKit(_Kit):
    """Checks an acceptance rule."""

    kind = "rule"


def parametrize_with_checks(
    kind: PluginKind,
    make: Callable[..., Any],
    *,
    config: type[PluginConfig] = PluginConfig,
    expected_failures: Mapping[str, str] | None = None,
    require: Iterable[str] = (),
    timeout: float | None = TIMEOUT,
    seed: int = 0,
    device: str = "cpu",
) -> Callable[[Function], Function]:
    """Parametrize a function with the checks. It takes `check` and calls it.

    ::

        @parametrize_with_checks("drafter", lambda target: Mine(MineConfig(), target))
        def test_mine(check):
            check()

    Args:
        kind: `drafter`, `gamma`, `lenience` or `rule`.
        make: Builds the plugin: from a `TargetInfo` for drafters, without arguments for others.
        config: The class of its settings.
        expected_failures: Checks that are known to fail, each with the reason.
        require: Optional checks that count.
        timeout: Seconds that each check may take; None for no limit.
        seed: Seed of all random numbers that the checks use.
        device: Device of the targets that the plugin is checked on.

    Raises:
        ConfigError: A given name is not that of a check; or as for `Subject`.
    """
    subject = subject_of(kind, make, config=config, seed=seed, device=device)
    expected, required = expected_failures or {}, tuple(require)
    require_known(kind, expected, "expected_failures")
    require_known(kind, required, "require")
    run = partial(run_check, expected_failures=expected, require=required, timeout=timeout)
    checks = [pytest.param(partial(run, one, subject), id=one.name) for one in checks_for(kind)]
    return pytest.mark.parametrize("check", checks)
