"""Gamma controllers along recorded texts: run step by step, with accepted tokens drawn at random.

What a controller is told is what it would be told in decoding, except for two things that a record does not know,
as they concern rejected tokens: which they are (`StepReport.draft_tokens` holds -1 there), and what was drafted
after them. A controller that stops drafts by confidence is asked with the confidence along the text instead. The
number of accepted tokens does not depend on either, but the length of rejected drafts does, and with it the cost.

This is not the batch of `specdec_core.decoding.step`: no drafter is asked, a step is a few numbers, and its
seconds are those of a machine that is not this one. There are some hundred steps for each text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_core.costs.step_costs import StepCosts
from specdec_core.decoding.counts import Metrics, StepTimes, Tally
from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.proposer import checked_plan
from specdec_core.interface import (
    AcceptanceRule,
    BatchInfo,
    ConfigError,
    GammaController,
    GammaSession,
    Outcome,
    PluginError,
    StepReport,
)
from specdec_core.offline.replay.text_acceptance import TextAcceptance

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNKNOWN = -1
_CONFIDENCE_NOTE = (
    "The controller stops drafts by confidence. After a rejected token, whose confidence no record knows, it was "
    "asked with that of the text's tokens: tokens per step are not affected, the length of rejected drafts is."
)


@dataclass(frozen=True, eq=False)
class DrawnRun:
    """Runs of a controller over N texts, each R times.

    Attributes:
        metrics: Counts and times, the mean of the R runs.
        steps: `[N, R]` float64, forward passes of the target for each text.
        accepted: `[N, R]` float64, accepted draft tokens.
        verified: `[N, R]` float64, verified draft tokens.
        seconds: `[N, R]` float64, their seconds; zeros without costs.
        notes: What a reader of the results should know.
    """

    metrics: Metrics
    steps: NDArray[np.float64]
    accepted: NDArray[np.float64]
    verified: NDArray[np.float64]
    seconds: NDArray[np.float64]
    notes: tuple[str, ...]


def draw_runs(
    acceptance: Sequence[TextAcceptance],
    controller: GammaController,
    greedy: bool,
    costs: StepCosts | None,
    draws: int,
    seed: int,
    *,
    rule: AcceptanceRule | None = None,
) -> DrawnRun:
    """Run a controller over each text, a number of times; see `expected_metrics`.

    Raises:
        ConfigError: The draws are empty, the controller asks for trees, or the rule takes more of p than is known.
        PluginError: It fails.
    """
    if draws < 1:
        raise ConfigError(f"draws is {draws!r}; it must be a whole number, at least 1.")
    every: list[Metrics] = []
    watches = False
    for text in acceptance:
        accept = [one.accept(rule) for one in text.by_budget or (text,)]
        for draw in range(draws):
            # Of its own text, so that a text's runs do not depend on which others are replayed with it.
            generator = np.random.default_rng((seed, text.number, text.sample, draw))
            run = _Run(text, accept, controller, greedy, costs, generator)
            every.append(run.metrics())
            watches = watches or run.watches
    found = [(one.target_calls, one.accepted, one.accepted + one.rejected, one.seconds) for one in every]
    steps, accepted, verified, seconds = np.array(found, dtype=np.float64).T.reshape(4, len(acceptance), draws)
    notes = (_CONFIDENCE_NOTE,) if watches else ()
    return DrawnRun(_divided(Metrics.total(every), draws), steps, accepted, verified, seconds, notes)


class _Run:
    """One text, decoded step by step.

    Args:
        text: The drafter along the text.
        accept: The acceptance of its tokens; one for each budget where its drafts depend on it.
        controller: Decides gamma.
        greedy: Whether the target decodes greedily.
        costs: The times of steps; None for zeros.
        generator: Draws the accepted tokens.
    """

    def __init__(
        self,
        text: TextAcceptance,
        accept: Sequence[NDArray[np.float64]],
        controller: GammaController,
        greedy: bool,
        costs: StepCosts | None,
        generator: np.random.Generator,
    ) -> None:
        self._text, self._controller, self._costs, self._generator = text, controller, costs, generator
        self._accept = accept
        self._tokens: list[int] = text.tokens.tolist()
        self._guard = PluginGuard(strict=True)
        with self._guard.calling(controller):
            self._max_gamma = controller.max_gamma
            session = controller.open(BatchInfo(1, self._max_gamma, (text.limit,), greedy))
            if session is None:
                raise PluginError("open() returned None; it must return a session.")
            self.watches = bool(session.uses_confidence)
        self._session: GammaSession = session

    def metrics(self) -> Metrics:
        """Decode the text, and return what was counted."""
        tally, at = Tally(1), 0
        while at < len(self._tokens):
            with self._guard.calling(self._controller):
                plan = checked_plan(self._session.plan(), 1, self._max_gamma)
            if not isinstance(plan, tuple):
                raise ConfigError(
                    "this controller asks for trees, and a replay asks drafters for lines: where the target "
                    "samples, what is accepted of a tree depends on its rejected tokens, of which the text says "
                    "nothing. Replay a controller of lines, or compare live."
                )
            with self._guard.calling(self._controller):
                asked = min(plan[0], self._text.room(at))
                drafted, accepted = self._draft(at, asked)
                report = self._report(tally.steps, at, asked, drafted, accepted)
                self._session.observe(report)
            tally.add(report)
            self._guard.step += 1
            at += len(report.outcome.committed[0])
        return tally.metrics

    def _draft(self, at: int, asked: int) -> tuple[int, int]:
        """Return how many tokens the draft at a position has, and how many of them are accepted."""
        own, accept = self._text.asked(asked), self._accept[asked - 1 if len(self._accept) > 1 else 0]
        offered = min(asked, int(own.offered[at]))
        left = len(self._tokens) - at
        drafted = accepted = 0
        on = True
        while drafted < offered:
            inside = drafted < left
            if on and inside:
                on = self._generator.random() < accept[at, drafted]
                accepted += on
            told = float(own.confidence[at, drafted]) if inside else math.nan
            drafted += 1
            if self.watches and not math.isnan(told) and not self._session.keep_drafting([told])[0]:
                break
        return drafted, accepted

    def _report(self, step: int, at: int, asked: int, drafted: int, accepted: int) -> StepReport:
        committed = tuple(self._tokens[at : at + accepted + 1])
        ended = at + len(committed) == len(self._tokens)
        draft = (*committed[:accepted], *[_UNKNOWN] * (drafted - accepted))
        costs = self._costs
        in_drafter = costs.draft[drafted] if costs and asked else 0.0
        in_target = costs.verify[drafted] if costs else 0.0
        return StepReport(
            step=step,
            asked=(asked,),
            outcome=Outcome((drafted,), (accepted,), (committed,), (ended,)),
            draft_tokens=(draft,),
            draft_seconds=in_drafter,
            verify_seconds=in_target,
            step_seconds=in_drafter + in_target + (costs.overhead if costs else 0.0),
            deviation=(0.0,),
        )


def _divided(total: Any, by: int) -> Any:
    """Return the mean of a number of runs from the sum of their counts."""
    if isinstance(total, tuple):
        return tuple(_divided(value, by) for value in total)
    if isinstance(total, (Metrics, StepTimes)):
        return type(total)(**{field.name: _divided(getattr(total, field.name), by) for field in fields(total)})
    return total / by
