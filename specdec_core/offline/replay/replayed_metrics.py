"""The expected counts and times of a run, from the acceptance of its drafter along recorded texts.

A fixed gamma is computed. Other controllers run step by step along the texts, with accepted tokens drawn at
random. What one is told is what it would be told in decoding, except for two things that a record does not know:
which tokens are rejected (`StepReport.draft_tokens` holds -1 there), and what was drafted after them. A controller
that stops drafts by confidence is asked with the confidence along the text instead. The number of accepted tokens
does not depend on either, but the length of rejected drafts does, and with it the cost. This is not the batch of
`specdec_core.decoding.step`: no drafter is asked, a step is a few numbers, and its seconds are those of a machine
that is not this one. There are some hundred steps for each text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_core.costs.step_costs import StepCosts
from specdec_core.decoding.counts import Metrics, StepTimes, Tally
from specdec_core.decoding.guard import PluginGuard, opened
from specdec_core.decoding.proposer import checked_plan
from specdec_core.interface import AcceptanceRule, BatchInfo, ConfigError, GammaController, Outcome, StepReport
from specdec_core.interface.controllers import FixedGamma
from specdec_core.offline.replay.expected_counts import ExpectedCounts, expected_counts, uncached_after
from specdec_core.offline.replay.text_acceptance import TextAcceptance

_UNKNOWN = -1
_CONFIDENCE_NOTE = (
    "The controller stops drafts by confidence. After a rejected token, whose confidence no record knows, it was "
    "asked with that of the text's tokens: tokens per step are not affected, the length of rejected drafts is."
)


@dataclass(frozen=True, eq=False)
class Replayed:
    """Counts of a run over recorded texts, one text at a time, in expectation given the texts.

    Attributes:
        metrics: Expected counts, which are not whole numbers, and expected times if costs were given. The time of
            reading prompts is not in them.
        by_text: `[N]` float64 each: `tokens` of each text, and its expected `steps`, `accepted` and `verified`
            draft tokens; its `seconds` if costs were given.
        drawn: Standard error of the block efficiency that seeded draws of a controller's runs leave; None where
            the expectation is exact.
        notes: What a reader of the results should know.
    """

    metrics: Metrics
    by_text: Mapping[str, NDArray[np.float64]]
    drawn: float | None = None
    notes: tuple[str, ...] = ()


def expected_metrics(
    acceptance: Sequence[TextAcceptance],
    gamma: int | GammaController,
    *,
    rule: AcceptanceRule | None = None,
    greedy: bool = False,
    costs: StepCosts | None = None,
    draws: int = 8,
    seed: int = 0,
) -> Replayed:
    """Return the expected counts of a run.

    A fixed gamma is computed exactly. Any other controller is run step by step: the number of accepted tokens is
    drawn from its distribution, and the controller is told the step as in decoding.

    Args:
        acceptance: The drafter's acceptance along each text.
        gamma: The number of tokens drafted in each step, or the controller that decides it.
        rule: The acceptance rule, which `check_replayable` lets pass; None for Algorithm 1.
        greedy: Whether the target decodes greedily, which controllers are told. All rules accept the same then.
        costs: The times of steps with this drafter; None for counts alone.
        draws: Number of runs of each text that are drawn for a controller.
        seed: Seed of these draws.

    Raises:
        ConfigError: Drafts may be longer than those that are known or timed, the controller asks for trees, or the
            rule takes more of p than the record holds.
        PluginError: The controller fails.
    """
    if not acceptance:
        raise ConfigError("the record has no texts to replay.")
    longest = gamma.max_gamma if isinstance(gamma, GammaController) else gamma
    known = min(one.longest for one in acceptance)
    if not 0 <= longest <= known:
        raise ConfigError(
            f"gamma may be {longest}, but drafts of up to {known} tokens were replayed; replay the drafter with "
            f"max_gamma={longest} or more, or lower gamma."
        )
    if greedy:
        rule = None
    if costs is not None:
        costs.check(longest)
    tokens = np.array(list(map(len, acceptance)), dtype=np.float64)
    fixed = type(gamma) is FixedGamma and not gamma.config.skip_first
    if isinstance(gamma, GammaController) and not fixed:
        if draws < 1:
            raise ConfigError(f"draws is {draws!r}; it must be a whole number, at least 1.")
        accept = [[each.accept(rule) for each in text.by_budget or (text,)] for text in acceptance]
        # Of its own text, so that a text's runs do not depend on which others are replayed with it.
        runs = (
            _Run(text, own, gamma, greedy, costs, np.random.default_rng((seed, text.number, text.sample, draw)))
            for text, own in zip(acceptance, accept, strict=True)
            for draw in range(draws)
        )
        return _drawn(runs, tokens, draws, timed=costs is not None)
    return _exact(expected_counts([one.drafted(longest, rule) for one in acceptance], longest), tokens, costs)


def _exact(counts: ExpectedCounts, tokens: NDArray[np.float64], costs: StepCosts | None) -> Replayed:
    by_length = counts.steps_by_length.sum(axis=0)
    calls = float(counts.draft_calls.sum())
    steps = float(counts.steps.sum())
    values: dict[str, Any] = {
        "tokens": int(tokens.sum()),
        "target_calls": steps,
        "row_steps": steps,
        "drafted": float(counts.drafted.sum()),
        "accepted": float(counts.accepted.sum()),
        "rejected": float(counts.rejected.sum()),
        "asked_at": _trimmed(counts.asked_at.sum(axis=0)),
        "verified_at": _trimmed(counts.verified_at.sum(axis=0)),
        "accepted_at": _trimmed(counts.accepted_at.sum(axis=0)),
        "draft_calls": calls,
        "timed_draft_calls": calls - float(counts.first_draft_calls.sum()),
        "steps_asked": _trimmed(counts.steps_by_asked.sum(axis=0)),
        "times": tuple(StepTimes(steps=value) for value in _trimmed(by_length)),  # type: ignore[arg-type]
    }
    verified = counts.verified_at.sum(axis=1)
    by_text = {"tokens": tokens, "steps": counts.steps, "accepted": counts.accepted, "verified": verified}
    if costs is not None:
        by_text["seconds"], times = _times(counts, costs)
        values |= times
    return Replayed(Metrics(**values), by_text)


def _times(counts: ExpectedCounts, costs: StepCosts) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return the expected seconds of each text, and the fields of `Metrics` that hold times."""
    width = counts.steps_by_length.shape[1]
    verify, drafting = np.array(costs.verify[:width]), np.array(costs.draft[:width] or (0.0,))
    every = counts.steps_by_length + counts.first_length
    # A step that asked for nothing took nothing; one that asked and got nothing took D(0).
    idle = counts.steps_by_asked[:, :1] + counts.first_asked[:, :1]
    in_drafter = every @ drafting - idle[:, 0] * drafting[0]
    in_target = every @ verify
    seconds = in_drafter + in_target + counts.steps * costs.overhead
    timed = counts.steps_by_length.sum(axis=0)
    drafted = timed * drafting
    drafted[0] -= counts.steps_by_asked[:, 0].sum() * drafting[0]
    rows = zip(_trimmed(timed), drafted, timed * verify, strict=False)
    times = tuple(StepTimes(n, own, other, own + other + n * costs.overhead) for n, own, other in rows)  # type: ignore[arg-type]
    return seconds, {
        "seconds": float(seconds.sum()),
        "draft_seconds": float(in_drafter.sum()),
        "verify_seconds": float(in_target.sum()),
        "times": times,
    }


def _trimmed(values: NDArray[np.float64]) -> tuple[float, ...]:
    """Return values without zeros at the end."""
    indices = np.flatnonzero(values)
    return tuple(map(float, values[: indices[-1] + 1])) if len(indices) else ()


def _drawn(runs: Iterable[_Run], tokens: NDArray[np.float64], draws: int, *, timed: bool) -> Replayed:
    every, watches = zip(*((run.metrics(), run.watches) for run in runs), strict=True)
    metrics = _divided(Metrics.total(every), draws)
    found = [(one.target_calls, one.accepted, one.accepted + one.rejected, one.seconds) for one in every]
    each = np.array(found, dtype=np.float64).reshape(len(tokens), draws, 4)
    names = ("steps", "accepted", "verified", *(["seconds"] if timed else []))
    totals = each[..., 0].sum(axis=0)
    error = float(totals.std(ddof=1) / np.sqrt(draws) / totals.mean()) if draws > 1 else np.nan
    by_text = {"tokens": tokens, **dict(zip(names, each.mean(axis=1).T, strict=False))}
    notes = (_CONFIDENCE_NOTE,) if any(watches) else ()
    return Replayed(metrics, by_text, float(metrics.block_efficiency * error), notes)


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
            self._session = opened(controller.open(BatchInfo(1, self._max_gamma, (text.limit,), greedy)))
            self.watches = bool(self._session.uses_confidence)

    def metrics(self) -> Metrics:
        """Decode the text, and return what was counted."""
        tally, at, known = Tally(1), 0, self._text.uncached
        waiting = 0 if known is None else known.begin
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
                too_many = known is not None and waiting > known.most
                asked = 0 if too_many else min(plan[0], self._text.room(at))
                drafted, accepted = self._draft(at, asked)
                report = self._report(tally.steps, at, asked, drafted, accepted)
                self._session.observe(report)
            waiting = int(uncached_after(waiting, drafted, accepted))
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
