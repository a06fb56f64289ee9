"""The plugin under test: its construction, and its declarations. Imports no torch until something is built."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel

from specdec_core._time_limit import TimeLimitExceeded
from specdec_core.interface import Drafter, DrafterConfig, PluginConfig, PluginSpec
from specdec_core.interface.errors import ConfigError, PluginError, SpecdecError, is_failure
from specdec_core.interface.spec import PluginKind
from specdec_core.testing.causes import author_frame, root_of
from specdec_core.testing.effort import Effort, visible_error
from specdec_core.testing.registration import CheckFailure, format_error

if TYPE_CHECKING:
    from specdec_core.testing.harness.tiny_target import TinyTarget

T = TypeVar("T")

_EFFORT = "effort"


@dataclass(frozen=True)
class Subject:
    """The plugin under test.

    Attributes:
        make: Builds the plugin: from a `TargetInfo` for drafters, without arguments for controllers.
        config: The class of its settings, which says what it needs and decides which checks apply.
        seed: Seed of all random numbers that the checks use.
        spec: Its `PluginSpec`; None for a plugin that is given as a function.
        device: Device of the targets that it is checked on.
        quick: Whether checks try fewer texts and samples, even if the plugin is fast.
        notes: What the running check does not try, for lack of time.

    Raises:
        ConfigError: torch cannot use the device.
    """

    kind: ClassVar[PluginKind]
    """The kind of plugin."""
    label: ClassVar[str]
    """The name of the kind in messages."""
    make_must_be: ClassVar[str]
    """The type of `make`, for messages."""
    base_attributes: ClassVar[tuple[str, ...]] = ("config",)
    """The arguments of the base class's constructor, which stores them under these names."""

    make: Callable[..., Any]
    config: type[PluginConfig] = PluginConfig
    seed: int = 0
    spec: PluginSpec | None = None
    device: str = "cpu"
    quick: bool = False
    notes: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _require_device(self.device)

    def once(self, key: object, function: Callable[[], T]) -> T:
        """Return the function's result, which is cached under this key.

        An exception is cached and raised again, so that what is slow to fail does not fail in every check.
        """
        if key not in self._cache:
            try:
                self._cache[key] = function(), None
            except BaseException as error:
                if not (is_failure(error) or isinstance(error, TimeLimitExceeded)):
                    raise
                self._cache[key] = None, error
        result, failure = self._cache[key]
        if failure is not None:
            raise failure
        value: T = result
        return value

    def in_short(self) -> Subject:
        """Return the same plugin as a subject of quick checks."""
        return replace(self, quick=True)

    @property
    def effort(self) -> Effort:
        """How much checks try. It depends on what the first calls of the plugin take, which are timed once."""
        if self.quick:
            return Effort.QUICK
        if _EFFORT not in self._cache:
            from specdec_core.testing.harness.state import restored_globals

            self._cache[_EFFORT] = Effort.FULL, None  # should timing it fail, the checks say how
            # What it changes is for the checks to find.
            try:
                with restored_globals():
                    self._cache[_EFFORT] = self._timed_effort(), None
            except BaseException as error:
                if not is_failure(error):
                    raise
        effort: Effort = self._cache[_EFFORT][0]
        return effort

    def _timed_effort(self) -> Effort:
        """Return what is affordable, after a few calls of the plugin."""
        raise NotImplementedError

    def times(self, full: int, short: int, what: str) -> int:
        """Return how often a check tries something, and note it where time is short.

        Args:
            full: How often it does where time does not matter.
            short: How often it does otherwise.
            what: What it tries, for the note.
        """
        count = self.effort.times(full, short)
        if count < full:
            self.notes.append(f"{count} of {full} {what}")
        return count

    def samples(self, least: int, most: int, batch: int, *, seconds: float) -> tuple[int, int]:
        """Return the size of a first sample and of the largest, and note it where time is short.

        Args:
            least: The first size where time does not matter.
            most: The largest.
            batch: How many are sampled together.
            seconds: How long the plugin may take for the first sample.
        """
        effort = self.effort
        if not effort.short:
            return least, most
        size = effort.samples(least, batch, seconds)
        limit = min(most, 2 * size)
        self.notes.append(
            f"at most {limit:,} of {most:,} samples, which show errors that move {visible_error(limit)} of the "
            f"probability (not {visible_error(most)})"
        )
        return size, limit

    def advice(self, failure: CheckFailure) -> str | None:  # noqa: ARG002  (drafters have some)
        """Return which function of the author must change, and how; None if the failure does not tell."""
        return None

    def build(self, base: type[T], *arguments: object, where: str = "") -> T:
        """Build the plugin.

        Args:
            base: The class that it must derive from.
            arguments: The arguments of `make`.
            where: What it is built for, for messages.

        Raises:
            CheckFailure: It cannot be built, does not derive from the base class, or did not call its constructor.
        """
        did = f"built the {self.label}{where}"
        expected = f"a {base.__name__}"
        self._require_callable(did, *arguments)
        try:
            plugin = self.make(*arguments)
        except BaseException as error:
            if not is_failure(error):
                raise
            # An error that the user can fix says all.
            got = str(error) if isinstance(error, SpecdecError) else format_error(error)
            raise CheckFailure(did, got, expected, _BUILD_HINTS.get(self.kind)) from error
        if not isinstance(plugin, base):
            got = f"{type(plugin).__name__}: {plugin!r}"
            raise CheckFailure(did, got, expected, f"make must be {self.make_must_be}")
        missing = [name for name in self.base_attributes if not hasattr(plugin, name)]
        if missing:
            got = f"a {type(plugin).__name__} without {' and '.join(f'`{name}`' for name in missing)}"
            hint = f"In {type(plugin).__name__}.__init__ call super().__init__({', '.join(self.base_attributes)})."
            raise CheckFailure(did, got, "the attributes that the base class sets", hint)
        return plugin

    def _require_callable(self, did: str, *arguments: object) -> None:
        """Fail if `make` cannot be called with these arguments, which is not a fault of the plugin."""
        if not callable(self.make):
            raise CheckFailure(did, f"make is a {type(self.make).__name__}", f"make is {self.make_must_be}")
        try:
            signature = inspect.signature(self.make)
        except (TypeError, ValueError):  # some functions of C extensions have none
            return
        try:
            signature.bind(*arguments)
        except TypeError as error:
            what = "the class" if isinstance(self.make, type) else "the function"
            name = getattr(self.make, "__name__", type(self.make).__name__)
            raise CheckFailure(did, f"make is {what} {name}: {error}", f"make is {self.make_must_be}") from None


def _require_device(device: str) -> None:
    if device == "cpu":
        return  # always there, and torch need not be imported yet
    import torch

    try:
        torch.zeros(1, device=device).tolist()
    except (RuntimeError, AssertionError):  # the latter where torch was built without CUDA
        available = ", ".join(["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))])
        raise ConfigError(f"device {device!r}: torch cannot use it. Available: {available}.") from None


_BUILD_HINTS: dict[PluginKind, str] = {
    "drafter": (
        "The kit's targets have few token ids (`target.vocab_size`). A drafter that loads weights or tables "
        "needs some for that vocabulary: override `make`, and write them to a temporary folder there."
    )
}


@dataclass(frozen=True)
class DrafterSubject(Subject):
    """A drafter under test, and the tiny targets that it is checked on."""

    kind: ClassVar[PluginKind] = "drafter"
    label: ClassVar[str] = "drafter"
    make_must_be: ClassVar[str] = "a function that takes a TargetInfo and returns a Drafter"
    base_attributes: ClassVar[tuple[str, ...]] = ("config", "target")

    @property
    def needs(self) -> type[DrafterConfig]:
        """The drafter's declared needs."""
        return self.config if issubclass(self.config, DrafterConfig) else DrafterConfig

    @property
    def targets(self) -> tuple[TinyTarget, ...]:
        """The targets that it supports: decoder-only, encoder-decoder, or both.

        They have a tokenizer if it declares that it needs one, or says so (with a ConfigError) when it is built:
        the need may depend on the settings.
        """
        tokenizer = self.needs.needs_tokenizer or self.once("tokenizer", self._asks_for_a_tokenizer)
        targets = self._targets(tokenizer=tokenizer)
        if len(targets) > 1 and self.effort.one_target:
            self.notes.append(f"1 of {len(targets)} targets")
            return targets[:1]
        return targets

    def _targets(self, *, tokenizer: bool) -> tuple[TinyTarget, ...]:
        from specdec_core.testing.harness.tiny_target import tiny_target

        kinds = {"any": (False, True), "decoder-only": (False,), "encoder-decoder": (True,)}[self.needs.targets]
        return tuple(tiny_target(encoder, self.device, tokenizer=tokenizer) for encoder in kinds)

    def _asks_for_a_tokenizer(self) -> bool:
        from specdec_core.testing.harness.state import restored_globals

        with restored_globals():  # what it changes is for the checks to find
            try:
                self.drafter(self._targets(tokenizer=False)[0])
            except CheckFailure as failure:
                return isinstance(failure.__cause__, ConfigError) and "tokenizer" in str(failure.__cause__)
        return False

    @property
    def target(self) -> TinyTarget:
        """The first of its targets: the decoder-only one, if it supports that."""
        return self.targets[0]

    def drafter(self, target: TinyTarget) -> Drafter:
        """Return the drafter for a target, which is built once.

        Raises:
            CheckFailure: It cannot be built.
        """
        return self.once(("drafter", target), lambda: self._built_and_recorded(target))

    def _built_and_recorded(self, target: TinyTarget) -> Drafter:
        drafter = self.fresh(target)
        attributes = attributes_of(drafter)
        self.once(("attributes", target), lambda: attributes)
        return drafter

    def drafts_trees(self, target: TinyTarget) -> bool:
        """Whether the drafter for a target drafts trees where they are asked for."""
        return self.once(("drafts trees", target), lambda: self._says_that_it_drafts_trees(target))

    def _says_that_it_drafts_trees(self, target: TinyTarget) -> bool:
        from specdec_core.testing.harness.state import restored_globals

        with restored_globals():  # what building it changes is for the checks to find
            return bool(self.drafter(target).drafts_trees)

    def first_attributes(self, target: TinyTarget) -> dict[str, Any]:
        """Return the `attributes_of` the drafter for a target, as they were when it had just been built."""
        self.drafter(target)
        recorded: dict[str, Any] = self.once(("attributes", target), dict)
        return recorded

    def fresh(self, target: TinyTarget) -> Drafter:
        """Build another drafter for a target.

        Raises:
            CheckFailure: It cannot be built.
        """
        return self.build(Drafter, target.info, where=f" for {target}")  # type: ignore[type-abstract]

    def rows(self, count: int) -> int:
        """Return how many rows to try: `count`, or 2 if each row takes long."""
        return self.times(count, min(count, 2), "rows of a batch") if self.effort.slow_rows else count

    def _timed_effort(self) -> Effort:
        from specdec_core.testing.harness.session_driver import seconds_of_a_call

        target, several = self.target, 4
        self.drafter(target)  # if it cannot be built, that is tried once
        drafter = self.fresh(target)
        one_row = seconds_of_a_call(target, drafter, 1, self.seed)
        return Effort.of_drafter(one_row, seconds_of_a_call(target, drafter, several, self.seed), several)

    def advice(self, failure: CheckFailure) -> str | None:
        """Return which function of the author drafts and what it must return, if what it returned is at fault."""
        from specdec_core.testing.harness.session_driver import SessionDriver

        root = root_of(failure)
        if not isinstance(root, PluginError) or author_frame(root) is not None:
            return None
        try:
            driver = SessionDriver(self.target, self.drafter(self.target), [self.target.begin()])
        except (CheckFailure, ConfigError):
            return None
        return driver.advice


def attributes_of(drafter: Drafter) -> dict[str, Any]:
    """Return copies of a drafter's config and target info."""
    config, target = drafter.config, drafter.target
    values = (
        config.model_dump() if isinstance(config, BaseModel) else copy.copy(getattr(config, "__dict__", config))
    )
    return {"config": values, "target": copy.copy(target)}
