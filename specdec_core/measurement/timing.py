"""What steps take, by the length of their draft: T(k), the drafter's part, and c."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from specdec_core.border import (
    BatchInfo,
    DeterministicDrafter,
    Drafter,
    DraftRequest,
    DraftSession,
    GammaController,
    GammaSession,
    Outcome,
    PluginConfig,
    Proposal,
    SessionInfo,
    StepReport,
    TargetInfo,
)
from specdec_core.decoding import Decoder, Prompt
from specdec_core.errors import PromptError
from specdec_core.measurement.file import StepSeconds
from specdec_core.measurement.settings import MeasureSettings
from specdec_core.randomness import row_seed
from specdec_core.settings import GenerationSettings


class Always(GammaController):
    """Asks for the same number of tokens in every step."""

    def __init__(self, gamma: int) -> None:
        super().__init__(PluginConfig())
        self._gamma = gamma

    @property
    def max_gamma(self) -> int:
        """The number."""
        return self._gamma

    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch."""
        return _Session(batch.batch_size, lambda: self._gamma)


class InTurns(Always):
    """Asks for 0, 1, ... gamma tokens in turns, each turn in an order of its own.

    Each length meets the same machine, be it warm or busy, and none always follows the same other one: what a step
    costs the drafter depends on what was kept of the step before.
    """

    def __init__(self, gamma: int, generator: np.random.Generator) -> None:
        super().__init__(gamma)
        self._generator = generator
        self._left: list[int] = []

    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch; a turn that was not finished goes on in it."""
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


class Repeating(DeterministicDrafter):
    """Guesses the last token again, as often as it may: drafts of every length at no cost, to time a target."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(PluginConfig(), target)

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        """Return the last token, `budget` times."""
        return [tokens[-1]] * budget


class Waiting(Drafter):
    """A drafter behind whose every draft the device is waited for, so that its work is not charged to the target.

    Args:
        drafter: Who drafts.
        wait: Waits until the device has done all it was given.
    """

    def __init__(self, drafter: Drafter, wait: Callable[[], None]) -> None:
        super().__init__(drafter.config, drafter.target)
        self.needs_hidden_states = drafter.needs_hidden_states
        self._drafter, self._wait = drafter, wait

    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch."""
        return _WaitingSession(self._drafter.open(session), self._wait)


class _WaitingSession(DraftSession):
    def __init__(self, session: DraftSession, wait: Callable[[], None]) -> None:
        self._session, self._wait = session, wait

    def propose(self, request: DraftRequest) -> Proposal:
        made = self._session.propose(request)
        self._wait()
        return made

    def commit(self, outcome: Outcome) -> None:
        self._session.commit(outcome)
        self._wait()

    def close(self) -> None:
        self._session.close()


def synchronised(drafter: Drafter, device: torch.device) -> Drafter:
    """Return the drafter, waiting for the device where that computes behind our back."""
    if device.type != "cuda":
        return drafter
    return Waiting(drafter, lambda: torch.cuda.synchronize(device))


@dataclass(frozen=True)
class Timing:
    """What steps take.

    Attributes:
        seconds: By length of draft.
        c: Cost coefficient (Definition 3.7).
        timed: The lengths of draft that this drafter made often enough to be timed.
    """

    seconds: StepSeconds
    c: float
    timed: tuple[int, ...]


def watch_steps(
    decoder: Decoder, prompts: Sequence[Prompt], settings: MeasureSettings, advance: Callable[[int], None]
) -> list[StepReport]:
    """Decode speculatively for a while, with drafts of all lengths in turns; return what the steps reported.

    Args:
        decoder: Of target and drafter, with `InTurns` as its gamma.
        prompts: What to decode; they are taken in turns too.
        settings: How often each length is timed, how many prompts are decoded together, and how long.
        advance: Called with the number of steps so far.

    Raises:
        PluginError: The drafter failed, where the decoder is strict.
        PromptError: The prompts leave no room.
    """
    turn = settings.gamma + 1
    wanted = (settings.timings + 1) * turn
    generation = GenerationSettings(max_new_tokens=max(settings.max_new_tokens, 2 * turn), ignore_eos=True)
    reports: list[StepReport] = []
    number = 0

    def enough() -> bool:
        # First steps count for nothing and take lengths out of their turns: with few turns, there might be none
        # left without a draft, and nothing to compare with.
        return len(reports) >= wanted and any(max(one.drafted) == 0 for one in reports[turn:])

    while not enough():
        if number >= len(prompts) and not reports:
            raise PromptError("no prompt leaves room for a second step in the target's context. Shorten them.")
        rows = range(number, number + settings.batch_size)
        number += settings.batch_size
        seeds = [row_seed(settings.seed, row) for row in rows]
        steps = decoder.stream([prompts[row % len(prompts)] for row in rows], generation, seeds=seeds)
        for report in steps:
            if report.step:  # the first one reads the prompt
                reports.append(report)
            advance(len(reports))
            # A step in which some rows have ended is not one of this batch size.
            if enough() or any(report.finished):
                break
        steps.close()
    return reports[turn:]  # in the first turn caches warm up


@dataclass(frozen=True)
class Medians:
    """Median seconds of steps, by the length of draft that occurred.

    Attributes:
        draft: In the drafter.
        verify: In the target's forward, the acceptance and the wait for both, T(k).
        rest: Everything else.
    """

    draft: Mapping[int, float]
    verify: Mapping[int, float]
    rest: float

    @classmethod
    def of(cls, reports: Sequence[StepReport], fewest: int = 3) -> Medians:
        """Return the medians of some steps, by the longest draft that was made, whatever was asked for.

        A step in which the drafter was asked in vain tells what the target takes alone, and nothing else.

        Args:
            reports: Steps, some of them with no draft.
            fewest: Lengths that occurred less often are left out, 0 excepted.
        """
        draft: dict[int, list[float]] = {}
        verify: dict[int, list[float]] = {}
        for report in reports:
            k = max(report.drafted)
            verify.setdefault(k, []).append(report.verify_seconds)
            draft.setdefault(k, []).append(report.draft_seconds if k else 0.0)
        often = [k for k in draft if k == 0 or len(draft[k]) >= fewest]
        rest = [one.step_seconds - one.verify_seconds - one.draft_seconds for one in reports]
        return cls(
            {k: median(draft[k]) for k in often}, {k: median(verify[k]) for k in often}, max(0.0, median(rest))
        )

    def lacks(self, gamma: int) -> bool:
        """Whether there is a length up to gamma that did not occur."""
        return not all(k in self.verify for k in range(gamma + 1))

    def timing(self, gamma: int, verify: Mapping[int, float] | None = None) -> Timing:
        """Return what steps take for every length up to gamma.

        Args:
            gamma: The longest draft.
            verify: T(k) of other drafts, for lengths that did not occur; without one, T(k) too is read off the
                line between its neighbours, or the line that goes on, as the drafter's time is.
        """
        draft = _filled(self.draft, gamma)
        checked = _filled({**(verify or {}), **self.verify}, gamma)
        step = tuple(one + other + self.rest for one, other in zip(draft, checked, strict=True))
        seconds = StepSeconds(draft=draft, verify=checked, step=step)
        return Timing(seconds, self._cost, tuple(sorted(self.draft)))

    @property
    def _cost(self) -> float:
        """The c whose k * c is nearest to the time of drafting k tokens: least squares through the origin."""
        squares = sum(k * k for k in self.draft)
        return sum(k * value for k, value in self.draft.items()) / squares / self.verify[0] if squares else 0.0


def _filled(known: Mapping[int, float], gamma: int) -> tuple[float, ...]:
    """Return a value for each of 0, 1, ... gamma from those that are known."""
    places = sorted(known)
    values = np.interp(np.arange(gamma + 1), places, [known[place] for place in places])
    if len(places) > 1 and places[-1] < gamma:
        last, before = places[-1], places[-2]
        # More work never takes less time: a falling end is noise, and is not drawn out.
        slope = max(0.0, (known[last] - known[before]) / (last - before))
        values[last:] = known[last] + slope * np.arange(gamma + 1 - last)
    return tuple(map(float, values))
