"""The kits for pytest: subclass one, or decorate one function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import pytest

from specdec_core.border import Capabilities, PluginKind
from specdec_core.errors import SpecdecError
from specdec_core.registry import WORD_FOR_KIND, default_registry
from specdec_core.testing.checking import Check, checks, require_known
from specdec_core.testing.running import judge
from specdec_core.testing.subject import Subject, named, subject_of

Function = TypeVar("Function", bound=Callable[..., None])

_SUBJECT = pytest.StashKey[Subject]()
"""Where pytest keeps what a class judges, for as long as it runs the class."""


class _Kit:
    """What the kits of all kinds share: one test for each check."""

    kind: ClassVar[PluginKind]
    wanted: ClassVar[str]
    """What the fixture `make` must return."""

    plugin: ClassVar[str | None] = None
    """The name of an installed plugin; None where the fixture `make` says how to make one."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the installed plugin, as a study would state them."""
    capabilities: ClassVar[Capabilities] = Capabilities()
    """What a plugin that `make` makes needs or cannot do; an installed one has announced it."""
    expected_failures: ClassVar[Mapping[str, str]] = {}
    """Checks that are known to fail, each with the reason; one that passes all the same fails the test."""
    require: ClassVar[tuple[str, ...]] = ()
    """Optional checks that shall count."""
    seed: ClassVar[int] = 0
    """Of all random numbers that the checks use."""
    device: ClassVar[str] = "cpu"
    """Where the targets compute that it is tried with."""

    @pytest.fixture
    def make(self) -> Callable[..., Any] | None:
        """Return what makes the plugin. Override it, or name an installed plugin."""
        return None

    @pytest.fixture
    def subject(self, make: Callable[..., Any] | None, request: pytest.FixtureRequest) -> Subject:
        """Return what is judged: the same for all tests of the class, so that what they share is made once."""
        stash = request.node.parent.stash
        if _SUBJECT not in stash:
            stash[_SUBJECT] = self._judged(make)
        subject: Subject = stash[_SUBJECT]
        return subject

    def _judged(self, make: Callable[..., Any] | None) -> Subject:
        if self.plugin is not None and make is None:
            return named(self.kind, self.plugin, self.settings, seed=self.seed, device=self.device)
        if make is None:
            pytest.fail(_without_make(type(self)), pytrace=False)
        spec = None if self.plugin is None else default_registry().spec(self.kind, self.plugin)
        can = self.capabilities if spec is None else spec.capabilities
        return subject_of(self.kind, make, capabilities=can, seed=self.seed, spec=spec, device=self.device)

    def test_conforms(self, check: Check, subject: Subject) -> None:
        """Run one check."""
        required = check.required or check.name in self.require
        report_to_pytest(check, subject, self.expected_failures.get(check.name), required=required)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of each check; refuse a class that cannot be run."""
        if "check" not in metafunc.fixturenames:
            return
        who = type(self)
        try:
            # A fixture is another object each time that it is looked up; whose it is tells.
            own = [vars(base)["make"] for base in who.__mro__[: who.__mro__.index(_Kit)] if "make" in vars(base)]
            if self.plugin is None and not own:
                raise SpecdecError(_without_make(who))
            if own and not _is_fixture(own[0]):
                what = f"{who.__name__}.make is no fixture: put @pytest.fixture above it."
                raise SpecdecError(f"{what} It must return {who.wanted}.")
            self._judged(_later if own else None)  # refuses names, settings, capabilities and devices
            for where in ("expected_failures", "require"):
                require_known(self.kind, getattr(self, where), f"{who.__name__}.{where}")
        except SpecdecError as error:
            raise pytest.Collector.CollectError(str(error)) from None
        metafunc.parametrize("check", checks(self.kind), ids=lambda one: one.name)


def _later(*given: object) -> None:
    """Stand for what the fixture `make` will return, before any fixture runs."""


def _is_fixture(thing: object) -> bool:
    return isinstance(thing, type(vars(_Kit)["make"]))


def _without_make(who: type[_Kit]) -> str:
    return (
        f"{who.__name__} does not say what to judge. Name an installed {WORD_FOR_KIND[who.kind]} "
        f'(`plugin = "..."`), or override the fixture `make`, which must return {who.wanted}:\n\n'
        f"    class {who.__name__}({who.__mro__[1].__name__}):\n"
        "        @pytest.fixture\n"
        "        def make(self):\n"
        f"            return {_EXAMPLES[who.kind]}"
    )


_EXAMPLES: dict[PluginKind, str] = {
    "drafter": "lambda target: MyDrafter(MyConfig(), target)",
    "gamma": "lambda: MyGamma(MyConfig())",
    "lenience": "lambda: MyLenience(MyConfig())",
}


class DrafterKit(_Kit):
    """Judges a drafter; its tests are `test_conforms[budget-respected]` and so on."""

    kind = "drafter"
    wanted = "a function that takes a TargetInfo and returns a Drafter"


class GammaKit(_Kit):
    """Judges a gamma controller."""

    kind = "gamma"
    wanted = "a function without arguments that returns a GammaController"


class LenienceKit(_Kit):
    """Judges a lenience controller."""

    kind = "lenience"
    wanted = "a function without arguments that returns a LenienceController"


def parametrize_with_checks(
    kind: PluginKind,
    make: Callable[..., Any],
    *,
    capabilities: Capabilities | None = None,
    expected_failures: Mapping[str, str] | None = None,
    require: Iterable[str] = (),
    seed: int = 0,
    device: str = "cpu",
) -> Callable[[Function], Function]:
    """Turn one function into a test for each check; it takes `check` and calls it.

    ::

        @parametrize_with_checks("drafter", lambda target: Mine(MineConfig(), target))
        def test_mine(check):
            check()

    Args:
        kind: `drafter`, `gamma` or `lenience`.
        make: Makes the plugin: of a `TargetInfo` for drafters, of nothing for controllers.
        capabilities: What it needs or cannot do.
        expected_failures: Checks that are known to fail, each with the reason.
        require: Optional checks that shall count.
        seed: Of all random numbers that the checks use.
        device: Where the targets compute that it is tried with.

    Raises:
        ConfigError: A name is not that of a check; or as for `Subject`.
    """
    subject = subject_of(kind, make, capabilities=capabilities or Capabilities(), seed=seed, device=device)
    return pytest.mark.parametrize("check", params(subject, expected_failures or {}, tuple(require)))


def params(subject: Subject, expected: Mapping[str, str], require: Iterable[str]) -> list[Any]:
    """Return a parameter for each check of a subject: a function without arguments that runs it.

    Raises:
        ConfigError: A name is not that of a check.
    """
    counting = set(require)
    require_known(subject.kind, expected, "expected_failures")
    require_known(subject.kind, counting, "require")

    def bound(one: Check) -> Callable[[], None]:
        required = one.required or one.name in counting
        return lambda: report_to_pytest(one, subject, expected.get(one.name), required=required)

    return [pytest.param(bound(one), id=one.name) for one in checks(subject.kind)]


def report_to_pytest(check: Check, subject: Subject, expected: str | None, *, required: bool) -> None:
    """Run a check as the body of a test: pass, fail, skip, or fail as expected, without a traceback of the kit."""
    __tracebackhide__ = True
    result = judge(check, subject, expected, required=required)
    if result.outcome == "failed":
        pytest.fail(f"{check.name}: {check.summary}\n\n{result.message}", pytrace=False)
    if result.outcome == "skipped":
        pytest.skip(result.message)
    if result.outcome == "expected":
        pytest.xfail(result.message)
    if result.outcome == "optional":
        pytest.xfail(f"optional: {result.message}")
