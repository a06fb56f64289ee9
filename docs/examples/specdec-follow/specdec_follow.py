"""The controllers `follow` and `late`: how many tokens to draft, and how strictly to judge them."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from specdec_core import (
    BatchInfo,
    GammaController,
    GammaSession,
    LenienceController,
    LenienceSession,
    PluginConfig,
    PluginSpec,
    StepReport,
    hookimpl,
)
from specdec_core.interface import LenienceConfig


# --8<-- [start:gamma]
class FollowConfig(PluginConfig):
    """One token more than were accepted last time."""

    max_gamma: Annotated[int, Field(ge=1)] = 8
    """Maximum number of tokens to draft per step."""


class Follow(GammaController):
    """Asks for one token more than were accepted last time, row by row."""

    @property
    def max_gamma(self) -> int:
        return int(self.config.max_gamma)

    def open(self, batch: BatchInfo) -> GammaSession:
        return FollowSession(self.max_gamma, batch.batch_size)


class FollowSession(GammaSession):
    def __init__(self, max_gamma: int, batch_size: int) -> None:
        self.max_gamma, self.gammas = max_gamma, [1] * batch_size

    def plan(self) -> Sequence[int]:
        return self.gammas

    def observe(self, report: StepReport) -> None:
        self.gammas = [min(accepted + 1, self.max_gamma) for accepted in report.outcome.accepted]


# --8<-- [end:gamma]
class LateConfig(LenienceConfig):
    """Strict where a text begins, lenient then."""

    strict_for: Annotated[int, Field(ge=0)] = 16
    """New tokens of a row that are judged strictly."""
    lenience: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The factor l behind them."""


class Late(LenienceController):
    """Judges the beginning of a text strictly, and what follows leniently."""

    def open(self, batch: BatchInfo) -> LenienceSession:
        return LateSession(self.config, batch)


class LateSession(LenienceSession):
    def __init__(self, config: LateConfig, batch: BatchInfo) -> None:
        self.config, self.width = config, max(1, batch.max_gamma)
        self.lengths = [0] * batch.batch_size

    def lenience(self) -> Sequence[Sequence[float]]:
        """Return l of each row, one for each position of its draft."""
        strict, lenience = self.config.strict_for, self.config.lenience
        return [[1.0 if n + i < strict else lenience for i in range(self.width)] for n in self.lengths]

    def observe(self, report: StepReport) -> None:
        self.lengths = [n + len(new) for n, new in zip(self.lengths, report.outcome.committed, strict=True)]


@hookimpl
def specdec_gamma_controllers() -> list[PluginSpec]:
    """Announce the controller of gamma."""
    return [PluginSpec("gamma", "follow", "specdec_follow:Follow", FollowConfig)]


@hookimpl
def specdec_lenience_controllers() -> list[PluginSpec]:
    """Announce the controller of lenience."""
    return [PluginSpec("lenience", "late", "specdec_follow:Late", LateConfig)]
