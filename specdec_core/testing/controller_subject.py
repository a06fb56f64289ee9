"""Controllers that are judged: how one is made, and the small target that it is tried with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specdec_core.border import BatchInfo, GammaController, LenienceController, PluginKind
from specdec_core.testing.checking import CheckFailure
from specdec_core.testing.instruments.courses import Course, Script
from specdec_core.testing.subject import Subject

if TYPE_CHECKING:
    from specdec_core.testing.instruments.world import World


@dataclass(frozen=True)
class _ControllerSubject(Subject):
    @property
    def world(self) -> World:
        """Return the small target that it is tried with, with the kit's own drafter."""
        from specdec_core.testing.instruments.world import world

        return world(device=self.device)


@dataclass(frozen=True)
class GammaSubject(_ControllerSubject):
    """A gamma controller to be judged."""

    kind: ClassVar[PluginKind] = "gamma"
    word: ClassVar[str] = "gamma controller"
    makes: ClassVar[str] = "a function without arguments that returns a GammaController"

    def fresh(self) -> GammaController:
        """Make the controller: each check has one of its own, as it may learn.

        Raises:
            CheckFailure: It cannot be made, or its `max_gamma` is none.
        """
        controller = self.made(GammaController)  # type: ignore[type-abstract]
        most = controller.max_gamma
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise CheckFailure("read max_gamma", f"{most!r}", "a whole number of the type int, at least 0")
        return controller

    def course(
        self, script: Script, controller: GammaController | None = None, judged: Collection[str] = ()
    ) -> Course:
        """Open an imagined batch with the controller, by default one made just now; see `Course`."""
        return Course(script, gamma=controller or self.fresh(), judged=judged)

    @property
    def watches(self) -> bool:
        """Whether its sessions are asked after every drafted token."""
        controller = self.fresh()
        return controller.open(BatchInfo(1, controller.max_gamma, (8,), False)).watches_confidence


@dataclass(frozen=True)
class LenienceSubject(_ControllerSubject):
    """A lenience controller to be judged."""

    kind: ClassVar[PluginKind] = "lenience"
    word: ClassVar[str] = "lenience controller"
    makes: ClassVar[str] = "a function without arguments that returns a LenienceController"

    def fresh(self) -> LenienceController:
        """Make the controller: each check has one of its own, as it may learn.

        Raises:
            CheckFailure: It cannot be made.
        """
        return self.made(LenienceController)  # type: ignore[type-abstract]

    def course(
        self, script: Script, controller: LenienceController | None = None, judged: Collection[str] = ()
    ) -> Course:
        """Open an imagined batch with the controller, by default one made just now; see `Course`."""
        return Course(script, lenience=controller or self.fresh(), judged=judged)

    @property
    def lossless(self) -> bool:
        """Whether its settings promise that l is 1 whatever happens."""
        return bool(getattr(self.fresh().config, "lossless", False))
