"""Controllers under test: how to build them, and simulated batches to drive them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from specdec_core.interface import BatchInfo, GammaController, LenienceConfig, LenienceController
from specdec_core.interface.spec import PluginKind
from specdec_core.testing.effort import Effort
from specdec_core.testing.harness.scenarios import Scenario, scenario_of
from specdec_core.testing.harness.simulated_batch import SimulatedBatch
from specdec_core.testing.registration import CheckFailure
from specdec_core.testing.subject import Subject

if TYPE_CHECKING:
    from specdec_core.testing.harness.tiny_target import TinyTarget


@dataclass(frozen=True)
class _ControllerSubject(Subject):
    @property
    def target(self) -> TinyTarget:
        """The tiny target that it is checked on, with the kit's own drafter."""
        from specdec_core.testing.harness.tiny_target import tiny_target

        return tiny_target(device=self.device)

    def _timed_effort(self) -> Effort:
        batch = self.simulate(scenario_of(1, 2, 3, room=900))
        batch.step()
        began = perf_counter()
        batch.run(3)
        return Effort.of_controller((perf_counter() - began) / 3)

    def fresh(self) -> Any:
        """Build the controller. Each check builds its own, since a controller may learn."""
        raise NotImplementedError

    def simulate(
        self, scenario: Scenario, controller: Any = None, require: Collection[str] = ()
    ) -> SimulatedBatch:
        """Open a simulated batch, by default with a new controller; see `SimulatedBatch`."""
        return SimulatedBatch(scenario, **{self.kind: controller or self.fresh()}, require=require)


@dataclass(frozen=True)
class GammaSubject(_ControllerSubject):
    """A gamma controller under test."""

    kind: ClassVar[PluginKind] = "gamma"
    label: ClassVar[str] = "gamma controller"
    make_must_be: ClassVar[str] = "a function without arguments that returns a GammaController"

    def fresh(self) -> GammaController:
        """Build the controller. Each check builds its own, since a controller may learn.

        Raises:
            CheckFailure: It cannot be built, or its `max_gamma` is not valid.
        """
        controller = self.build(GammaController)  # type: ignore[type-abstract]
        maximum = controller.max_gamma
        if isinstance(maximum, bool) or not isinstance(maximum, int) or maximum < 0:
            raise CheckFailure("read max_gamma", f"{maximum!r}", "an int of at least 0")
        return controller

    @property
    def uses_confidence(self) -> bool:
        """Whether its sessions are asked after every drafted token."""
        controller = self.fresh()
        return controller.open(BatchInfo(1, controller.max_gamma, (8,), False)).uses_confidence


@dataclass(frozen=True)
class LenienceSubject(_ControllerSubject):
    """A lenience controller under test."""

    kind: ClassVar[PluginKind] = "lenience"
    label: ClassVar[str] = "lenience controller"
    make_must_be: ClassVar[str] = "a function without arguments that returns a LenienceController"

    def fresh(self) -> LenienceController:
        """Build the controller. Each check builds its own, since a controller may learn.

        Raises:
            CheckFailure: It cannot be built.
        """
        return self.build(LenienceController)  # type: ignore[type-abstract]

    def lossless_for(self, *, greedy: bool) -> bool:
        """Return whether its settings promise that l is always 1, in greedy decoding or where p is sampled."""
        config = self.fresh().config
        return isinstance(config, LenienceConfig) and config.lossless_for(greedy=greedy)
