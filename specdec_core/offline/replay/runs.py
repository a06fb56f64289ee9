"""Numbers of runs from the texts of a record: expected counts and seconds, and how certain they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from specdec_core.costs import StepCosts
from specdec_core.decoding import make_gamma, make_lenience, make_rule
from specdec_core.interface import AcceptanceRule, GammaController
from specdec_core.interface.errors import ConfigError
from specdec_core.offline.record.format import Record, RecordedText, RecordPart
from specdec_core.offline.replay import DrafterReplay, Replayed, TextAcceptance, check_replayable, expected_metrics
from specdec_core.offline.replay.workers import PooledDrafter, PooledReplay
from specdec_core.study.report.run_fields import PromptCounts, ReplayedOn
from specdec_core.theory.intervals import ratio_interval

if TYPE_CHECKING:
    from specdec_core.cluster import Pool
    from specdec_core.interface import Drafter, Progress
    from specdec_core.interface.settings import GenerationSettings
    from specdec_core.models import LoadedModel
    from specdec_core.registry import Registry
    from specdec_core.study.config.study import Run


How: TypeAlias = tuple[GammaController, AcceptanceRule | None]
"""The gamma controller of a run, and its acceptance rule; None for Algorithm 1."""
Asked: TypeAlias = DrafterReplay | PooledReplay
"""A drafter along some texts, here or on workers."""


@dataclass(frozen=True)
class Replayer:
    """Replays runs on a part of a record.

    Attributes:
        record: The record.
        part: The part.
        folder: Base for relative paths in settings.
        registry: Where plugins come from.
        progress: Where drafters report progress; None for nowhere.
        target: The target, if it is loaded.
        pool: Workers that ask the drafters; None for this process.
    """

    record: Record
    part: RecordPart
    folder: Path
    registry: Registry
    progress: Progress | None = None
    target: LoadedModel | None = None
    pool: Pool | None = None

    def how(self, run: Run, generation: GenerationSettings | None = None) -> How:
        """Return the gamma controller and the acceptance rule of a run.

        Args:
            run: The run.
            generation: Its length limits; by default those that were recorded.

        Raises:
            ConfigError: It cannot be replayed; with the reason.
            PluginError: A plugin cannot be loaded.
        """
        if run.drafter is None:
            raise ConfigError(
                f"run {run.name!r} is decoded by an engine: say with `drafter` and `gamma` what the server drafts "
                "with, and the replay forecasts it."
            )
        greedy = self.part.header.sampling.greedy
        lenience = make_lenience(run.lenience, self.registry)
        rule = make_rule(run.rule, self.registry, greedy=greedy, lenience=lenience)
        check_replayable(rule=rule, lenience=lenience, greedy=greedy, generation=generation)
        gamma = make_gamma(run.gamma, self.registry)
        assert gamma is not None, "only the baseline has none"
        return gamma, rule

    def start(
        self, run: Run, max_gamma: int, texts: Sequence[int] | None = None, loaded: Drafter | None = None
    ) -> Callable[[], Asked]:
        """Return a function that loads the drafter of a run; workers load and ask it from now on.

        Args:
            run: The run.
            max_gamma: The longest draft.
            texts: Numbers of the texts, in ascending order; None for all.
            loaded: The drafter, if this process has loaded it.
        """
        assert run.drafter is not None, "the baseline drafts nothing"
        folder = self.folder.absolute()
        if self.pool is not None:
            record, part = self.record, self.record.parts.index(self.part)
            where = torch.get_num_threads(), record.path.absolute(), record.named, part
            asked = PooledDrafter(*where, run, max_gamma, folder)
            pooled = PooledReplay(self.pool, asked, range(len(self.part)) if texts is None else texts)
            return lambda: pooled
        return partial(
            DrafterReplay,
            self.record,
            self.part,
            loaded or run.drafter,
            texts=texts,
            max_gamma=max_gamma,
            draft_sampling=run.draft_sampling,
            registry=self.registry,
            folder=folder,
            progress=self.progress,
            target=self.target,
        )


class RecordedTexts:
    """The texts of a part, as the target decodes them alone.

    Args:
        part: The part.

    Attributes:
        prompts: Number of the prompt of each text; of a conversation, that of its first turn.
    """

    def __init__(self, part: RecordPart) -> None:
        self._texts = [_undrafted(text) for text in part]
        self._numbers = [text.number for text in self._texts]
        self.prompts = list(map(part.conversation_of, self._numbers))
        self._count = len(set(self._numbers)) + part.outgrown

    def __len__(self) -> int:
        return len(self._texts)

    def alone(self, costs: StepCosts | None) -> Replayed:
        """Return the target's counts without a drafter; without costs, no times."""
        return expected_metrics(self._texts, 0, costs=costs)

    def certain(self, replayed: Replayed, record: str, costs: StepCosts | None, where: str | None) -> ReplayedOn:
        """Return what a run was replayed on, with the intervals of its numbers over texts.

        Args:
            replayed: The run.
            record: Name of the record.
            costs: The times of its steps; None for none.
            where: The name of their machine in results.
        """
        steps, tokens = replayed.steps_by_text.tolist(), replayed.tokens_by_text.tolist()
        low, high = ratio_interval(tokens, steps, self.prompts) or (None, None)
        faster: tuple[float | None, float | None] = (None, None)
        alone = self.alone(costs).seconds_by_text
        if replayed.seconds_by_text is not None and alone is not None:
            own = replayed.seconds_by_text.tolist()
            faster = ratio_interval(alone.tolist(), own, self.prompts) or faster
        return ReplayedOn(
            *(record, len(tokens), len(set(self.prompts)), sum(tokens)),
            machine=None if costs is None else where,
            low=low,
            high=high,
            drawn=replayed.drawn,
            speedup_low=faster[0],
            speedup_high=faster[1],
            noise=None if costs is None else costs.noise,
        )

    def by_prompt(self, replayed: Replayed) -> tuple[PromptCounts, ...]:
        """Return the counts of a run for the texts of each prompt; zeros for a turn that was not decoded."""
        seconds = replayed.seconds_by_text
        counts = [replayed.tokens_by_text, replayed.steps_by_text, replayed.accepted_by_text]
        counts += [replayed.verified_by_text, np.zeros(len(self)) if seconds is None else seconds]
        sums = np.zeros((self._count, len(counts)))
        np.add.at(sums, self._numbers, np.stack(counts, axis=1))
        found = []
        for number, (tokens, steps, accepted, verified, took) in enumerate(sums.tolist()):
            known = None if seconds is None else took
            found.append(PromptCounts(number, tokens, steps, accepted, verified, known))
        return tuple(found)


def _undrafted(text: RecordedText) -> TextAcceptance:
    """Return a text without any draft along it."""
    length = len(text.tokens)
    return TextAcceptance(
        ratio=np.zeros((length, 0)),
        offered=np.zeros(length, dtype=np.int64),
        confidence=np.zeros((length, 0), dtype=np.float32),
        tokens=text.tokens,
        limit=length,
        reach=length - 1,
        number=text.number,
        sample=text.sample,
    )


class Drafted:
    """A drafter that was asked for drafts along the texts of a part: every gamma follows from that.

    Args:
        replay: The drafter; it is asked here.
        greedy: Whether the target decodes greedily.
        seed: Seed of what is drawn for controllers.

    Raises:
        SpecdecError: The drafter fails, or cannot be replayed.
    """

    def __init__(self, replay: Asked, *, greedy: bool, seed: int = 0) -> None:
        self.replay = replay
        self._acceptance = replay.acceptance()
        self._greedy, self._seed = greedy, seed
        self._speedups: dict[tuple[StepCosts, str | None], tuple[float, ...]] = {}

    def expected(
        self,
        gamma: int | GammaController,
        rule: AcceptanceRule | None,
        costs: StepCosts | None,
    ) -> Replayed:
        """Return the counts of a run.

        Args:
            gamma: Tokens drafted in each step, or the controller.
            rule: The acceptance rule; None for Algorithm 1.
            costs: The times of steps with this drafter; None for counts alone.
        """
        greedy, seed = self._greedy, self._seed
        return expected_metrics(self._acceptance, gamma, rule=rule, greedy=greedy, costs=costs, seed=seed)

    def speedups(self, texts: RecordedTexts, rule: AcceptanceRule | None, costs: StepCosts) -> tuple[float, ...]:
        """Return the expected speed-up with each gamma from 0 that was replayed and timed.

        Args:
            texts: The texts.
            rule: The acceptance rule; None for Algorithm 1.
            costs: The times of steps with this drafter.
        """
        key = costs, None if rule is None else repr(rule.config)
        if key not in self._speedups:
            alone = texts.alone(costs).metrics.seconds
            most = min(self._acceptance[0].longest, len(costs.step) - 1)
            took = [self.expected(gamma, rule, costs).metrics.seconds for gamma in range(1, most + 1)]
            self._speedups[key] = (1.0, *(alone / one for one in took))
        return self._speedups[key]
