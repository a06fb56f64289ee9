"""Scenarios of simulated batches: the length of rows, and the accepted tokens. No model is needed."""

from __future__ import annotations

import random
from dataclasses import dataclass

VOCAB = 6
"""Number of token ids of simulated drafts."""
PHASE = 12
"""Number of steps after which a row's acceptance rate changes."""


@dataclass(frozen=True)
class ScenarioRow:
    """How one row of a simulated batch behaves.

    Attributes:
        seed: Seed of everything that happens to it.
        room: Maximum number of new tokens.
        end_rate: Probability that the row ends in a step.
        acceptance: Probability that a draft token is accepted; None alternates between all, none and some.
        empty_rate: Probability that the drafter proposes nothing.
    """

    seed: int
    room: int = 60
    end_rate: float = 0.0
    acceptance: float | None = None
    empty_rate: float = 0.15

    def random(self, step: int) -> random.Random:
        """Return the random numbers of a step. They depend on this row only."""
        return random.Random(f"{self.seed}/{step}")

    def acceptance_at(self, step: int) -> float:
        """Return the probability that a draft token of this step is accepted."""
        return (1.0, 0.0, 0.6)[(step // PHASE + self.seed) % 3] if self.acceptance is None else self.acceptance


@dataclass(frozen=True)
class Scenario:
    """How a simulated batch behaves.

    Attributes:
        rows: Its rows.
        greedy: Whether decoding is greedy.
        max_gamma: Maximum draft length, for lenience controllers. Gamma controllers have their own.
        resumes: Whether rows that have ended go on later, as they do inside a hierarchy.
    """

    rows: tuple[ScenarioRow, ...]
    greedy: bool = False
    max_gamma: int = 4
    resumes: bool = False

    def __str__(self) -> str:
        rooms = ", ".join(str(row.room) for row in self.rows)
        how = "greedy" if self.greedy else "sampled"
        return f"a simulated batch of {len(self.rows)} row(s), {how}, with room for {rooms} new tokens"


def scenario_of(*seeds: int, **settings: object) -> Scenario:
    """Return a scenario with a row for each seed. The settings are those of `ScenarioRow`."""
    return Scenario(tuple(ScenarioRow(seed, **settings) for seed in seeds))  # type: ignore[arg-type]
