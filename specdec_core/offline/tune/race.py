"""A race of candidates over the texts of a record: more texts in each round, and only for those still in it.

`specdec_core.offline.tune.elimination` says when a candidate is stopped, and with what probability the fastest
one survives. Importing this imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np

from specdec_core.interface.errors import ConfigError
from specdec_core.offline.tune.elimination import (
    Ratio,
    cluster_counts,
    comparison_error,
    fieller_interval,
    standing,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdec_core.interface import Progress


@dataclass(frozen=True)
class RaceSettings:
    """How a race is run.

    Attributes:
        error: Probability with which it may stop the fastest candidate, at most.
        margin: A candidate is not stopped if it may be slower than the leader by less than this fraction: the
            times of steps have errors, too, which no number of texts makes smaller.
        finalists: The most candidates that are left at its end.
        seed: Of the order in which prompts come.
    """

    error: float = 0.05
    margin: float = 0.02
    finalists: int = 4
    seed: int = 0


Outcome: TypeAlias = Literal["finalist", "stopped", "beyond", "refused"]
"""The fate of a candidate; see `Tried`."""


@dataclass(frozen=True)
class Tried:
    """The fate of a candidate.

    Attributes:
        name: Its name.
        rounds: Number of rounds in which it was compared; 0 if it could not be replayed.
        texts: Number of texts that it was replayed on.
        speed: Expected tokens per second over these texts, with a 95% confidence interval; None if it could not be
            replayed.
        slower: Its expected seconds over those of the leader of its last round, with the interval that decided.
        leader: That leader.
        outcome: `finalist`; `stopped`, since it is clearly slower; `beyond`, if it is not, but there are enough
            finalists that are expected to be faster, or one that takes the same time in every text; or `refused`,
            if it cannot be replayed.
        reason: The same in a few words; None for a finalist.
    """

    name: str
    rounds: int
    texts: int
    speed: Ratio | None = None
    slower: Ratio | None = None
    leader: str | None = None
    outcome: Outcome = "finalist"
    reason: str | None = None


@dataclass(frozen=True)
class Race:
    """The result of a race.

    Attributes:
        tried: What became of each candidate, in the order in which they were given.
        finalists: Names of those that are left, the fastest first.
        prompts: Number of prompts that each round compared. No round follows that leaves a single candidate.
        texts: Number of texts of the prompts of the last round.
        settings: How it was run.
        level: Probability with which one comparison could err.
    """

    tried: tuple[Tried, ...]
    finalists: tuple[str, ...]
    prompts: tuple[int, ...]
    texts: int
    settings: RaceSettings
    level: float


class Seconds(Protocol):
    """Gives the expected seconds of candidates over texts."""

    def __call__(self, names: Sequence[str], texts: Sequence[int]) -> Mapping[str, NDArray[np.float64] | str]:
        """Return the seconds of each candidate in each text, `[texts]`; or why it cannot be replayed.

        Args:
            names: The candidates.
            texts: Numbers of the texts, none of which was asked for before.
        """


def race(
    names: Sequence[str],
    prompts: Sequence[int],
    tokens: Sequence[int],
    seconds: Seconds,
    settings: RaceSettings,
    progress: Progress,
) -> Race:
    """Find the candidates that may be the fastest.

    Args:
        names: The candidates.
        prompts: Number of the prompt of each text.
        tokens: Number of tokens of each text.
        seconds: Gives the expected seconds.
        settings: How to run it.
        progress: Where progress is reported.

    Raises:
        ConfigError: No candidate can be replayed, or texts are missing.
    """
    order = sorted(set(prompts))
    if not order:
        raise ConfigError("the record has no texts to compare candidates on.")
    Random(settings.seed).shuffle(order)
    counts = cluster_counts(len(order))
    level = comparison_error(settings.error, len(names), len(counts))
    field = _Field(names, prompts, tokens)
    for number, count in enumerate(counts, start=1):
        what = f"round {number} of {len(counts)}: {len(field.left)} candidates on {count} prompts"
        progress.stage(what, len(field.left))
        field.extend(seconds, order[field.prompts : count])
        field.judge(number, level, settings.margin)
        progress.measured({"left": len(field.left)})
        if len(field.left) == 1:
            break
    kept = field.finalists(settings.finalists)
    return Race(field.results(kept), tuple(kept), counts[:number], field.texts, settings, level)


class _Field:
    """The candidates of a race, and their seconds so far."""

    def __init__(self, names: Sequence[str], prompts: Sequence[int], tokens: Sequence[int]) -> None:
        self.left = list(names)
        self.prompts = self.texts = 0
        self._texts: dict[int, list[int]] = {}
        for text, prompt in enumerate(prompts):
            self._texts.setdefault(prompt, []).append(text)
        self._all_tokens = tokens
        self._tokens: list[float] = []
        self._seconds: dict[str, list[float]] = {name: [] for name in names}
        self._tried = {name: Tried(name, 0, 0) for name in names}

    def extend(self, seconds: Seconds, prompts: Sequence[int]) -> None:
        """Add prompts, in the given order."""
        texts = [text for prompt in prompts for text in self._texts[prompt]]
        found = seconds(self.left, texts)
        for name in list(self.left):
            one = found[name]
            if isinstance(one, str):
                self._leave(name, "refused", one)
            else:
                self._seconds[name] += self._by_prompt(one, prompts)
        self._tokens += self._by_prompt(np.array([self._all_tokens[text] for text in texts], float), prompts)
        self.prompts += len(prompts)
        self.texts += len(texts)
        if not self.left:
            reasons = "\n".join(dict.fromkeys(f"{one.name}: {one.reason}" for one in self._tried.values()))
            raise ConfigError(f"no candidate can be replayed.\n{reasons}")

    def judge(self, number: int, level: float, margin: float) -> None:
        """Compare all with the fastest, and stop those that are clearly slower."""
        totals = {name: np.array(self._seconds[name]) for name in self.left}
        found = standing(totals, level, margin)
        for name in self.left:
            self._tried[name] = Tried(
                name,
                rounds=number,
                texts=self.texts,
                speed=fieller_interval(np.array(self._tokens), totals[name]),
                slower=found.ratios[name],
                leader=found.leader,
            )
        for name in found.stopped:
            self._leave(name, "stopped", f"slower than {found.leader}")

    def finalists(self, most: int) -> list[str]:
        """Return those still in the race, the fastest first; of several that take the same time only the first."""
        first: dict[tuple[float, ...], str] = {}
        for name in sorted(self.left, key=lambda name: sum(self._seconds[name])):
            same = first.setdefault(tuple(self._seconds[name]), name)
            if same != name:
                self._leave(name, "beyond", f"as fast as {same} in every text")
        return list(first.values())[:most]

    def results(self, kept: Sequence[str]) -> tuple[Tried, ...]:
        """Return what became of each, given the finalists."""
        for name in [name for name in self.left if name not in kept]:
            self._leave(name, "beyond", f"not among the {len(kept)} fastest of those left")
        return tuple(self._tried.values())

    def _leave(self, name: str, outcome: Outcome, reason: str) -> None:
        self.left.remove(name)
        self._tried[name] = replace(self._tried[name], outcome=outcome, reason=reason)

    def _by_prompt(self, values: NDArray[np.float64], prompts: Sequence[int]) -> list[float]:
        """Return the sum over the texts of each prompt; the values are in the order of the prompts."""
        ends = np.cumsum([len(self._texts[prompt]) for prompt in prompts])
        return [float(part.sum()) for part in np.split(values, ends[:-1])]
