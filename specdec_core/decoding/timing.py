"""Time the steps of a decoder by the length of their draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.prompt import Prompt
from specdec_core.interface import (
    BatchInfo,
    DeterministicDrafter,
    GammaController,
    GammaSession,
    PluginConfig,
    StepReport,
    TargetInfo,
)
from specdec_core.interface.errors import PromptError
from specdec_core.interface.settings import GenerationSettings
from specdec_core.sampling.generators import row_seed
from specdec_core.theory.intervals import relative_spread, relative_spread_of_mean


class CyclingGamma(GammaController):
    """Requests 0, 1, ... gamma tokens in turn, in a new random order each time.

    Drift of the machine then affects all lengths equally, and no length always follows the same other one: the
    drafter's time depends on how many tokens of the previous step were accepted.
    """

    def __init__(self, gamma: int, generator: np.random.Generator) -> None:
        super().__init__(PluginConfig())
        self._gamma = gamma
        self._generator = generator
        self._left: list[int] = []

    @property
    def max_gamma(self) -> int:
        """The longest draft."""
        return self._gamma

    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch; the current turn continues in it."""
        return _Session(batch.batch_size, self._next)

    def _next(self) -> int:
        if not self._left:
            self._left = self._generator.permutation(self._gamma + 1).tolist()
        return self._left.pop()


class _Session(GammaSession):
    def __init__(self, batch_size: int, following: Callable[[], int]) -> None:
        self._batch_size, self._following = batch_size, following

    def gamma(self) -> Sequence[int]:
        return [self._following()] * self._batch_size


class RepeatLastToken(DeterministicDrafter):
    """Proposes the last token repeatedly: drafts of any length at no cost, to time the target."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(PluginConfig(), target)

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        """Return the last token, `budget` times."""
        return [tokens[-1]] * budget


def watch_steps(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    *,
    gamma: int,
    timings: int,
    batch_size: int = 1,
    max_new_tokens: int = 128,
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> list[StepReport]:
    """Decode with drafts of all lengths in turn, and return the reports of the steps.

    Args:
        decoder: A decoder with `CyclingGamma`.
        prompts: Prompts to decode, in turn.
        gamma: The longest draft.
        timings: Number of timings of each draft length.
        batch_size: Prompts decoded together.
        max_new_tokens: Length of the texts, longer where each draft length needs it.
        seed: Seed of the texts.
        advance: Called with the number of steps so far.

    Raises:
        PluginError: If the drafter fails and the decoder is strict.
        PromptError: If the prompts leave no room for a second step.
    """
    turn = gamma + 1
    required = (timings + 1) * turn
    generation = GenerationSettings(max_new_tokens=max(max_new_tokens, 2 * turn), ignore_eos=True)
    reports: list[StepReport] = []
    number = 0

    def enough() -> bool:
        # The first step of a batch is not counted, but uses up a length of the turn: with few turns there might be
        # no step without a draft, which all others are compared with.
        return len(reports) >= required and any(max(one.outcome.drafted) == 0 for one in reports[turn:])

    while not enough():
        if number >= len(prompts) and not reports:
            raise PromptError(
                "no prompt leaves room for a second step in the target's context. Shorten the prompts."
            )
        rows = range(number, number + batch_size)
        number += batch_size
        seeds = [row_seed(seed, row) for row in rows]
        steps = decoder.stream([prompts[row % len(prompts)] for row in rows], generation, seeds=seeds)
        for report in steps:
            if report.step:  # the first step reads the prompt
                reports.append(report)
            advance(len(reports))
            # Once a sequence has ended, steps no longer have this batch size.
            if enough() or any(report.outcome.finished):
                break
        steps.close()
    return reports[turn:]  # the first turn warms up


@dataclass(frozen=True)
class Medians:
    """Median seconds of steps, by the draft lengths that occurred.

    Attributes:
        draft: The drafter.
        verify: The target's forward pass, acceptance, and waiting for both, T(k).
        rest: Everything else.
        draft_spread: How well `draft` is known: half the 95% interval of each over its value.
        verify_spread: The same for `verify`.
    """

    draft: Mapping[int, float]
    verify: Mapping[int, float]
    rest: float
    draft_spread: Mapping[int, float] = field(default_factory=dict)
    verify_spread: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        reports: Sequence[StepReport],
        min_count: int = 3,
        draft_average: Callable[[Sequence[float]], float] = median,
    ) -> Medians:
        """Return the medians of some steps, by the longest draft that was proposed.

        A step in which the drafter proposed nothing only times the target.

        Args:
            reports: Steps, some of them without a draft.
            min_count: Lengths that occurred less often are left out, except 0.
            draft_average: What to return of the drafter's times. Their mean is what seconds add up from: drafts of
                one length may take very different times, as those of a chain do, and a median tells of one kind.
        """
        draft: dict[int, list[float]] = {}
        verify: dict[int, list[float]] = {}
        for report in reports:
            k = max(report.outcome.drafted)
            verify.setdefault(k, []).append(report.verify_seconds)
            draft.setdefault(k, []).append(report.draft_seconds if k else 0.0)
        often = [k for k in draft if k == 0 or len(draft[k]) >= min_count]
        rest = [one.step_seconds - one.verify_seconds - one.draft_seconds for one in reports]
        return cls(
            {k: draft_average(draft[k]) for k in often},
            {k: median(verify[k]) for k in often},
            max(0.0, median(rest)),
            spreads({k: draft[k] for k in often}, draft_average),
            spreads({k: verify[k] for k in often}),
        )

    def lacks(self, gamma: int) -> bool:
        """Whether there is a length up to gamma that did not occur."""
        return not all(k in self.verify for k in range(gamma + 1))

    def verify_times(self, gamma: int) -> tuple[float, ...]:
        """Return T(k) for k = 0, 1, ... gamma; lengths that did not occur are interpolated."""
        return filled(self.verify, gamma)


def spreads(
    timings: Mapping[int, Sequence[float]], average: Callable[[Sequence[float]], float] = median
) -> dict[int, float]:
    """Return how well the average of the timings of each draft length is known.

    Args:
        timings: Seconds by draft length.
        average: Their median, or their mean (`statistics.fmean`).

    Returns:
        Half the 95% interval of the average over the average, of lengths that were timed twice and take time.
    """
    relative = relative_spread_of_mean if average is fmean else relative_spread
    found = {k: relative(values) for k, values in timings.items() if average(values) > 0}
    return {k: spread for k, spread in found.items() if spread is not None}


def filled_spreads(known: Mapping[int, float], gamma: int) -> tuple[float, ...]:
    """Return the spreads of 0, 1, ... gamma; those of lengths that did not occur are between those of others."""
    places = sorted(known)
    return tuple(map(float, np.interp(range(gamma + 1), places, [known[k] for k in places]))) if places else ()


def filled(known: Mapping[int, float], gamma: int) -> tuple[float, ...]:
    """Interpolate and extrapolate known values to 0, 1, ... gamma."""
    places = sorted(known)
    values = np.interp(np.arange(gamma + 1), places, [known[place] for place in places])
    if len(places) > 1 and places[-1] < gamma:
        last, before = places[-1], places[-2]
        # More work never takes less time: a negative slope is noise and is not extrapolated.
        slope = max(0.0, (known[last] - known[before]) / (last - before))
        values[last:] = known[last] + slope * np.arange(gamma + 1 - last)
    return tuple(map(float, values))
