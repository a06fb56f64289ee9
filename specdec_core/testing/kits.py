"""The kits for pytest: subclass one, or decorate a function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

import pytest

from specdec_core.interface import Capabilities, PluginKind
from specdec_core.interface.errors import SpecdecError
from specdec_core.registry import KIND_LABELS, default_registry
from specdec_core.testing.limits import TIMEOUT, Limits
from specdec_core.testing.registration import Check, checks_for, require_known
from specdec_core.testing.runner import run_check
from specdec_core.testing.subject import Subject
from specdec_core.testing.subjects import named, subject_of

Function = TypeVar("Function", bound=Callable[..., None])

_SUBJECT = pytest.StashKey[Subject]()
"""Stores a class's subject for as long as pytest runs the class."""


class _Kit:
    """Base of all kits: one test per check."""

    kind: ClassVar[PluginKind]
    make_must_return: ClassVar[str]
    """What the fixture `make` must return, for messages."""

    plugin: ClassVar[str | None] = None
    """Name of an installed plugin; None if the fixture `make` says how to build one."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the installed plugin, as in a study."""
    capabilities: ClassVar[Capabilities] = Capabilities()
    """Capabilities of a plugin that `make` builds. An installed plugin has them in its spec."""
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

    def _subject(self, make: Callable[..., Any] | None) -> Subject:
        if self.plugin is not None and make is None:
            return named(self.kind, self.plugin, self.settings, seed=self.seed, device=self.device)
        if make is None:
            pytest.fail(_no_make(type(self)), pytrace=False)
        spec = None if self.plugin is None else default_registry().spec(self.kind, self.plugin)
        can = self.capabilities if spec is None else spec.capabilities
        return subject_of(self.kind, make, capabilities=can, seed=self.seed, spec=spec, device=self.device)

    def test_conforms(self, check: Check, subject: Subject) -> None:
        """Run one check."""
        required = check.required or check.name in self.require
        expected = self.expected_failures.get(check.name)
        report_to_pytest(check, subject, expected, required=required, timeout=self.timeout)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one test per check; refuse a class that cannot run."""
        if "check" not in metafunc.fixturenames:
            return
        cls = type(self)
        try:
            _require_known_attributes(cls)
            own = [vars(base)["make"] for base in cls.__mro__[: cls.__mro__.index(_Kit)] if "make" in vars(base)]
            if self.plugin is None and not own:
                raise SpecdecError(_no_make(cls))
            if own and not _is_fixture(own[0]):
                what = f"{cls.__name__}.make is not a fixture: decorate it with @pytest.fixture."
                raise SpecdecError(f"{what} It must return {cls.make_must_return}.")
            self._subject(_placeholder if own else None)  # refuses names, settings, capabilities and devices
            for where in ("expected_failures", "require"):
                require_known(self.kind, getattr(self, where), f"{cls.__name__}.{where}")
        except SpecdecError as error:
            raise pytest.Collector.CollectError(str(error)) from None
        metafunc.parametrize("check", checks_for(self.kind), ids=lambda one: one.name)


def _placeholder(*arguments: object) -> None:
    """Stands in for the result of the fixture `make` during collection."""


def _require_known_attributes(cls: type[_Kit]) -> None:
    """Refuse attributes of a kit class whose names are nearly those of a kit."""
    known = [name for name in (*_Kit.__annotations__, "make", "subject") if name != "make_must_return"]
    for base in cls.__mro__[: cls.__mro__.index(_Kit) - 1]:
        for name in vars(base):
            near = get_close_matches(name.lower(), known, n=1, cutoff=0.75)
            if near and name not in known and not name.startswith(("_", "test")):
                raise SpecdecError(
                    f"{base.__name__}.{name} is no attribute of a kit. Did you mean {near[0]!r}? "
                    f"A kit has {', '.join(known)}. Begin names of your own with an underscore."
                )


def _is_fixture(thing: object) -> bool:
    return isinstance(thing, type(vars(_Kit)["make"]))


def _no_make(cls: type[_Kit]) -> str:
    return (
        f"{cls.__name__} names no plugin to check. Name an installed {KIND_LABELS[cls.kind]} "
        f'(`plugin = "..."`), or override the fixture `make`, which must return {cls.make_must_return}:\n\n'
        f"    class {cls.__name__}({cls.__mro__[1].__name__}):\n"
        "        @pytest.fixture\n"
        "        def make(self):\n"
        f"            return {_EXAMPLES[cls.kind]}"
    )


_EXAMPLES: dict[PluginKind, str] = {
    "drafter": "lambda target: MyDrafter(MyConfig(), target)",
    "gamma": "lambda: MyGamma(MyConfig())",
    "lenience": "lambda: MyLenience(MyConfig())",
    "rule": "lambda: MyRule(MyConfig())",
}


class DrafterKit(_Kit):
    """Checks a drafter. Its tests are called `test_conforms[budget-respected]` and so on."""

    kind = "drafter"
    make_must_return = "a function that takes a TargetInfo and returns a Drafter"


class GammaKit(_Kit):
    """Checks a gamma controller."""

    kind = "gamma"
    make_must_return = "a function without arguments that returns a GammaController"


class LenienceKit(_Kit):
    """Checks a lenience controller."""

    kind = "lenience"
    make_must_return = "a function without arguments that returns a LenienceController"


class RuleKit(_Kit):
    """Checks an acceptance rule."""

    kind = "rule"
    make_must_return = "a function without arguments that returns an AcceptanceRule"


def parametrize_with_checks(
    kind: PluginKind,
    make: Callable[..., Any],
    *,
    capabilities: Capabilities | None = None,
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
        capabilities: What the plugin needs or cannot do.
        expected_failures: Checks that are known to fail, each with the reason.
        require: Optional checks that count.
        timeout: Seconds that each check may take; None for no limit.
        seed: Seed of all random numbers that the checks use.
        device: Device of the targets that the plugin is checked on.

    Raises:
        ConfigError: There is no check with a given name; or as for `Subject`.
    """
    subject = subject_of(kind, make, capabilities=capabilities or Capabilities(), seed=seed, device=device)
    return pytest.mark.parametrize("check", params(subject, expected_failures or {}, tuple(require), timeout))


def params(
    subject: Subject, expected: Mapping[str, str], require: Iterable[str], timeout: float | None = TIMEOUT
) -> list[Any]:
    """Return a pytest parameter per check: a function without arguments that runs it.

    Raises:
        ConfigError: There is no check with a given name.
    """
    required_names = set(require)
    require_known(subject.kind, expected, "expected_failures")
    require_known(subject.kind, required_names, "require")

    def bound(one: Check) -> Callable[[], None]:
        required = one.required or one.name in required_names
        known = expected.get(one.name)
        return lambda: report_to_pytest(one, subject, known, required=required, timeout=timeout)

    return [pytest.param(bound(one), id=one.name) for one in checks_for(subject.kind)]


def report_to_pytest(
    check: Check,
    subject: Subject,
    expected: str | None,
    *,
    required: bool,
    timeout: float | None = TIMEOUT,
) -> None:
    """Run a check as the body of a pytest test, without a traceback of the kit.

    The first failure of each cause is shown in full; later ones name the check that has it. After some checks in a
    row that did not end, the others of the subject fail at once.
    """
    __tracebackhide__ = True
    limits = subject.once("limits", lambda: Limits(timeout or None, None))
    seconds, _ = limits.of_the_next()
    if limits.stopped:
        pytest.fail(f"{check.name}: not run, since {limits.stopped}. `-k {check.name}` runs it.", pytrace=False)
    result = run_check(check, subject, expected, required=required, timeout=seconds)
    if result.outcome != "skipped":
        limits.learn(timed_out=result.timed_out)
    if result.shortened:
        sys.stdout.write(f"shortened, since {subject.effort.why}: {result.shortened}\n")
    if result.outcome == "failed":
        first = subject.first_with(result.cause or check.name, check.name)
        if first == check.name:
            pytest.fail(f"{check.name}: {check.summary}\n\n{result.message}", pytrace=False)
        pytest.fail(
            f"{check.name}: the same cause as {first}, which is shown in full. `-k {check.name}` shows this one.",
            pytrace=False,
        )
    if result.outcome == "skipped":
        pytest.skip(result.message)
    if result.outcome == "expected":
        pytest.xfail(result.message)
    if result.outcome == "optional":
        pytest.xfail(f"optional, {check.purpose}: {result.message}")
