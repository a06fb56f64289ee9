"""What is judged: a way to make a plugin, and what it declared. Imports no torch until something is made."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError, create_model

from specdec_core.border import Capabilities, Drafter, PluginConfig, PluginKind, PluginSpec, TargetInfo
from specdec_core.errors import ConfigError, unknown_name
from specdec_core.registry import WORD_FOR_KIND, default_registry
from specdec_core.testing.checking import CheckFailure
from specdec_core.testing.failing import told

if TYPE_CHECKING:
    from specdec_core.testing.instruments.world import World

T = TypeVar("T")

_SUBJECTS: dict[PluginKind, str] = {
    "drafter": "specdec_core.testing.subject:DrafterSubject",
    "gamma": "specdec_core.testing.controller_subject:GammaSubject",
    "lenience": "specdec_core.testing.controller_subject:LenienceSubject",
}


@dataclass(frozen=True)
class Subject:
    """A plugin to be judged.

    Attributes:
        make: Makes it: of `TargetInfo` for drafters, of nothing for controllers.
        capabilities: What it declared; says which checks apply.
        seed: Of all random numbers that the checks use.
        spec: How it announced itself; None where it was given as a function.
        device: Where the targets compute that it is tried with.

    Raises:
        ConfigError: The capabilities leave nothing to try, or torch cannot compute on the device.
    """

    kind: ClassVar[PluginKind]
    """What kind of plugin it is."""
    word: ClassVar[str]
    """What messages call it."""
    makes: ClassVar[str]
    """What `make` must be, for messages."""
    keeps: ClassVar[tuple[str, ...]] = ("config",)
    """What the constructor of the base class is given, and keeps under these names."""

    make: Callable[..., Any]
    capabilities: Capabilities = field(default_factory=Capabilities)
    seed: int = 0
    spec: PluginSpec | None = None
    device: str = "cpu"
    _kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _require_something_to_try(self.capabilities)
        _require_device(self.device)

    def once(self, key: object, function: Callable[[], T]) -> T:
        """Return what the function returned the first time that it was asked for under this key.

        An error is kept too, and raised again: what takes long to fail shall not do so in every check.
        """
        if key not in self._kept:
            try:
                self._kept[key] = function(), None
            except Exception as error:
                self._kept[key] = None, error
        value, failure = self._kept[key]
        if failure is not None:
            raise failure
        made: T = value
        return made

    def made(self, base: type[T], *given: object, what: str = "") -> T:
        """Make the plugin.

        Args:
            base: What it must be.
            given: What `make` takes.
            what: What it is made for, for messages.

        Raises:
            CheckFailure: It cannot be made, is something else, or was not begun by its base class.
        """
        did = f"made the {self.word}{what}"
        expected = f"a {base.__name__}"
        self._require_makes(did, *given)
        try:
            plugin = self.make(*given)
        except Exception as error:
            raise CheckFailure(did, told(error), expected, _MAKING.get(self.kind)) from error
        if not isinstance(plugin, base):
            raise CheckFailure(did, f"{type(plugin).__name__}: {plugin!r}", expected, f"make must be {self.makes}")
        missing = [name for name in self.keeps if not hasattr(plugin, name)]
        if missing:
            got = f"a {type(plugin).__name__} with no {' and no '.join(f'`{name}`' for name in missing)}"
            hint = f"In {type(plugin).__name__}.__init__ call super().__init__({', '.join(self.keeps)})."
            raise CheckFailure(did, got, "what it was made with, as the base class keeps it", hint)
        return plugin

    def _require_makes(self, did: str, *given: object) -> None:
        """Fail where `make` cannot be called at all, which is no fault of the plugin."""
        if not callable(self.make):
            raise CheckFailure(did, f"make is a {type(self.make).__name__}", f"make is {self.makes}")
        try:
            signature = inspect.signature(self.make)
        except (TypeError, ValueError):  # not every function of a C extension has one
            return
        try:
            signature.bind(*given)
        except TypeError as error:
            what = "the class" if isinstance(self.make, type) else "the function"
            name = getattr(self.make, "__name__", type(self.make).__name__)
            raise CheckFailure(did, f"make is {what} {name}: {error}", f"make is {self.makes}") from None


def _require_something_to_try(can: Capabilities) -> None:
    if not (can.decoder_only or can.encoder_decoder):
        raise ConfigError(
            "capabilities say that it works for neither kind of target: decoder_only and encoder_decoder are both "
            "False. At least one must be True."
        )
    if can.max_batch is not None and can.max_batch < 1:
        raise ConfigError(f"capabilities: max_batch is {can.max_batch}; it must be at least 1, or None for any.")


def _require_device(device: str) -> None:
    if device == "cpu":
        return  # whatever torch there is; it need not be imported yet
    import torch

    try:
        torch.zeros(1, device=device).tolist()
    except (RuntimeError, AssertionError):  # the latter where torch was built without CUDA
        there = ", ".join(["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))])
        raise ConfigError(f"device {device!r}: torch cannot compute there. There is: {there}.") from None


_MAKING: dict[PluginKind, str] = {
    "drafter": (
        "The kit's targets know a few token ids only (`target.vocab_size`). A drafter with weights or tables of "
        "its own must be given some of that vocabulary: override `make`, and write them into a folder there."
    )
}


@dataclass(frozen=True)
class DrafterSubject(Subject):
    """A drafter to be judged, with the small targets that it is tried with."""

    kind: ClassVar[PluginKind] = "drafter"
    word: ClassVar[str] = "drafter"
    makes: ClassVar[str] = "a function that takes a TargetInfo and returns a Drafter"
    keeps: ClassVar[tuple[str, ...]] = ("config", "target")

    @property
    def worlds(self) -> tuple[World, ...]:
        """Return the targets that it declared it works for: decoder-only, encoder-decoder, or both."""
        from specdec_core.testing.instruments.world import world

        can = self.capabilities
        kinds = [encoder for encoder in (False, True) if (can.encoder_decoder if encoder else can.decoder_only)]
        return tuple(world(encoder, self.device, tokenizer=can.needs_tokenizer) for encoder in kinds)

    @property
    def world(self) -> World:
        """Return the first of its targets: the decoder-only one, where it works for that."""
        return self.worlds[0]

    def drafter(self, world: World) -> Drafter:
        """Return the drafter for a target, made once.

        Raises:
            CheckFailure: It cannot be made.
        """
        return self.once(("drafter", world), lambda: self._made_with_note(world))

    def _made_with_note(self, world: World) -> Drafter:
        drafter = self.fresh(world)
        handed = handed_to(drafter)
        self.once(("handed", world), lambda: handed)
        return drafter

    def handed(self, world: World) -> dict[str, Any]:
        """Return what the drafter for a target was handed, as that was when it had just been made."""
        self.drafter(world)
        noted: dict[str, Any] = self.once(("handed", world), dict)
        return noted

    def fresh(self, world: World) -> Drafter:
        """Make the drafter for a target once more.

        Raises:
            CheckFailure: It cannot be made.
        """
        return self.made(Drafter, world.info, what=f" for {world}")  # type: ignore[type-abstract]

    def batch(self, wanted: int) -> int:
        """Return how many rows a check may decode together that would like so many."""
        most = self.capabilities.max_batch
        return wanted if most is None else min(wanted, most)


def handed_to(drafter: Drafter) -> dict[str, Any]:
    """Return what a drafter was handed when it was made: its settings, and what it was told of the target."""
    config, target = drafter.config, drafter.target
    settings = (
        config.model_dump() if isinstance(config, BaseModel) else copy.copy(getattr(config, "__dict__", config))
    )
    return {"config": settings, "target": copy.copy(target)}


def subject_of(kind: PluginKind, make: Callable[..., Any], **given: Any) -> Subject:
    """Return the subject of a kind; see `Subject` for what else may be given.

    Raises:
        ConfigError: There are no checks for this kind; or as for `Subject`.
    """
    if kind not in _SUBJECTS:
        raise ConfigError(unknown_name("kind of plugin with checks", kind, _SUBJECTS))
    module, _, name = _SUBJECTS[kind].partition(":")
    subject: Subject = getattr(importlib.import_module(module), name)(make, **given)
    return subject


def named(
    kind: PluginKind, name: str, settings: Mapping[str, Any] | None = None, *, seed: int = 0, device: str = "cpu"
) -> Subject:
    """Return the subject that is an installed plugin, by its name in a study.

    Args:
        kind: `drafter`, `gamma` or `lenience`.
        name: Its name.
        settings: Its settings, as a study would state them.
        seed: Of all random numbers that the checks use.
        device: Where the targets compute that it is tried with.

    Raises:
        PluginError: There is no plugin of this name; the message has the near misses.
        ConfigError: It does not take these settings; or as for `Subject`.
    """
    registry = default_registry()
    spec = registry.spec(kind, name)
    config = _config(kind, name, settings or {})

    def make(target: TargetInfo | None = None) -> Any:
        return registry.create(kind, name, config, target)

    return subject_of(kind, make, capabilities=spec.capabilities, seed=seed, spec=spec, device=device)


def _config(kind: PluginKind, name: str, settings: Mapping[str, Any]) -> PluginConfig:
    """Read settings as a study does, plugins that stand in them included."""
    # The study knows how; what it imports is only needed here.
    from specdec_core.study.config import run_model
    from specdec_core.study.problems import describe

    field = run_model(default_registry()).model_fields[kind]
    model = create_model("Plugin", **{kind: (field.annotation, field)})  # type: ignore[call-overload]
    data = {kind: {"name": name, **settings}}
    try:
        config: PluginConfig = getattr(model.model_validate(data), kind)
    except ValidationError as error:
        whose = f"{WORD_FOR_KIND[kind]} {name!r}"
        messages = describe(error, model, data, lambda *_: whose, written=lambda path: path[1:])
        raise ConfigError("\n".join(messages)) from error
    return config
