"""The expected counts and times of a run, from the acceptance of its drafter along recorded texts.

A fixed gamma is computed. Other controllers run step by step along the texts, with accepted tokens drawn at
random. What one is told is what it would be told in decoding, except for two things that a record does not know:
which tokens are rejected (`StepReport.draft_tokens` holds -1 there), and what was drafted after them. A controller
that stops drafts by confidence is asked with the confidence along the text instead. The number of accepted tokens
does not depend on either, but the length of rejected drafts does, and with it the cost. This is not the batch of
`specdec_core.decoding.step`: no drafter is asked, a step is a few numbers, and its seconds are those of a machine
that is not this one. There are some hundred steps for each text.

With a lossless acceptance rule the emitted text has the target's distribution whatever is drafted. Given the text,
Algorithm 1 accepts a draft token at a position where the drafter has q and the target emitted y with probability
min(1, q(y) / p(y)), independently of all that came before. Steps are therefore a Markov chain along the text: one
that begins at position i accepts n tokens with a probability that depends on i alone, and the next begins at
i + n + 1. Expectations follow by dynamic programming over the positions. A recurrent target reads tokens again
after a rejection, and drafts nothing where they are too many: for one, it is over their number as well. Other
lossless rules have another acceptance given the text, and the rest is the same: docs/exact-replay.md has proofs.

References:
    Leviathan, Kalman, Matias 2023, Algorithm 1 and appendix A.1 (arXiv 2211.17192).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec_core.costs.step_costs import StepCosts
from specdec_core.decoding.counts import Metrics, StepTimes, Tally
from specdec_core.decoding.guard import PluginGuard, opened
from specdec_core.decoding.proposer import checked_plan
from specdec_core.interface import AcceptanceRule, ConfigError, Outcome, PluginError, StepReport
from specdec_core.interface.controllers import BatchInfo, FixedGamma, GammaController
from specdec_core.verification import SpeculativeSampling

Floats: TypeAlias = NDArray[np.float64]

_CELLS = 4_000_000
"""The most numbers of an array of probabilities; texts beyond are computed in turn."""


class Uncached(NamedTuple):
    """The tokens that a recurrent target reads again with the next draft, as those after a rejection.

    Attributes:
        begin: Number of tokens that the first step reads.
        most: More are read without a draft.
    """

    begin: int
    most: int


def uncached_after(uncached: Any, drafted: Any, accepted: int) -> Any:
    """Return how many tokens the step after one reads, the last one included; of numbers or arrays."""
    return np.where(accepted == drafted, 1, uncached + accepted + 1)


@dataclass(frozen=True, eq=False)
class DraftedText:
    """The drafts along one text of L tokens.

    Attributes:
        accept: `[L, K]` float64. `accept[i, j]` is the probability that token j of a draft that begins at position
            i of the text is accepted, given the text and that the tokens before it in the draft were. Entries
            beyond the text or the draft are not read.
        offered: `[L]` int64, the tokens of the draft that begins at each position when as many as possible are
            asked for, which may reach beyond the text.
        reach: The most tokens that the text and a draft may have together; see `TextAcceptance`.
        uncached: What a recurrent target reads; None for others.
    """

    accept: Floats
    offered: NDArray[np.int64]
    reach: int
    uncached: Uncached | None = None


@dataclass(frozen=True, eq=False)
class ExpectedCounts:
    """Expected counts of decoding N texts one at a time, float64, as `Metrics` counts them. K is gamma.

    Attributes:
        steps: `[N]`, forward passes of the target.
        drafted: `[N]`, draft tokens.
        draft_calls: `[N]`, lengths of the drafts; 1 for one that was asked for and empty.
        asked_at: `[N, K]`, draft tokens asked for at each position of the draft.
        verified_at: `[N, K]`, draft tokens verified at each position: up to a rejection, or the text's end.
        accepted_at: `[N, K]`, draft tokens accepted at each position.
        steps_by_length: `[N, K + 1]`, steps whose draft had 0, 1, ... K tokens, without the first of each text.
        steps_by_asked: `[N, K + 1]`, steps that asked for 0, 1, ... K tokens, without the first of each text.
        first_length: `[N, K + 1]`, the same for the first steps alone, by the length of their draft.
        first_asked: `[N, K + 1]`, by what they asked for.
    """

    steps: Floats
    drafted: Floats
    draft_calls: Floats
    asked_at: Floats
    verified_at: Floats
    accepted_at: Floats
    steps_by_length: Floats
    steps_by_asked: Floats
    first_length: Floats
    first_asked: Floats

    @property
    def accepted(self) -> Floats:
        """`[N]`, accepted draft tokens."""
        accepted: Floats = self.accepted_at.sum(axis=1)
        return accepted

    @property
    def rejected(self) -> Floats:
        """`[N]`, drafts cut short by a rejection."""
        verified: Floats = self.verified_at.sum(axis=1)
        return verified - self.accepted


def expected_counts(texts: Sequence[DraftedText], gamma: int) -> ExpectedCounts:
    """Return the expected counts of decoding texts with a fixed gamma, each in a separate batch.

    Args:
        texts: What is known of drafts along each text, at least one; their K is at least gamma, and none is empty.
        gamma: Tokens asked for in every step, at least 0.
    """
    parts = [_counts_of(part, gamma) for part in _parts(texts, gamma)]
    names = [field.name for field in fields(ExpectedCounts)]
    return ExpectedCounts(**{name: np.concatenate([getattr(one, name) for one in parts]) for name in names})


def _parts(texts: Sequence[DraftedText], gamma: int) -> Iterator[Sequence[DraftedText]]:
    """Yield the texts in parts whose arrays fit in memory."""
    first, longest = 0, 0
    for number, text in enumerate(texts):
        longest = max(longest, len(text.accept))
        if number > first and (number + 1 - first) * longest * (gamma + 1) > _CELLS:
            yield texts[first:number]
            first, longest = number, len(text.accept)
    yield texts[first:]


def _counts_of(texts: Sequence[DraftedText], gamma: int) -> ExpectedCounts:
    lengths = np.array([len(text.accept) for text in texts])
    longest = int(lengths.max())
    position = np.arange(longest)
    left = lengths[:, None] - position  # tokens of the text from each position on, [N, L]; below 1 beyond its end
    asked = np.clip(np.array([text.reach for text in texts])[:, None] - position, 0, gamma)
    offered: NDArray[np.int64] = _padded([text.offered for text in texts], longest)
    drafted = np.minimum(asked, offered)
    # An end of sequence ends the text wherever it comes in the draft: nothing beyond it is verified.
    verifiable = np.minimum(drafted, left)
    known: Floats = _padded([text.accept[:, :gamma] for text in texts], longest)
    accept: Floats = np.where(np.arange(gamma) < verifiable[..., None], known, 0.0)  # [N, L, K]
    # The probability that a token and all before it in the draft are accepted.
    reached: Floats = np.cumprod(accept, axis=2, dtype=np.float64)
    before = np.concatenate([np.ones((*asked.shape, 1)), reached], axis=2)  # [N, L, K + 1]
    ends = np.concatenate([1 - accept, np.ones((*asked.shape, 1))], axis=2)
    moves = before * ends * (left > 0)[..., None]  # of n accepted tokens: the next step begins at i + n + 1
    begins, reading = _begins(moves), np.zeros(left.shape)
    if texts[0].uncached is not None:
        begins, reading = _begins_by_uncached(texts, moves, drafted)

    def total(values: Floats) -> Floats:
        sums: Floats = np.einsum("nl,nlk->nk", begins, values)
        return sums

    at, counts = np.arange(gamma), np.arange(gamma + 1)
    wanted: Floats = (at < asked[..., None]).astype(np.float64)
    verified: Floats = np.where(at < verifiable[..., None], before[..., :gamma], 0.0)
    by_length = begins[..., None] * (drafted[..., None] == counts)
    by_asked = begins[..., None] * (asked[..., None] == counts)
    by_length[..., 0] += reading
    by_asked[..., 0] += reading
    calls = np.maximum(drafted, asked > 0)
    return ExpectedCounts(
        steps=(begins + reading).sum(axis=1),
        drafted=(begins * drafted).sum(axis=1),
        draft_calls=(begins * calls).sum(axis=1),
        asked_at=total(wanted),
        verified_at=total(verified),
        accepted_at=total(reached),
        steps_by_length=by_length[:, 1:].sum(axis=1),
        steps_by_asked=by_asked[:, 1:].sum(axis=1),
        first_length=by_length[:, 0],
        first_asked=by_asked[:, 0],
    )


def _begins(moves: Floats) -> Floats:
    """Return the probability that a step begins at each position, `[N, L]`.

    Args:
        moves: `[N, L, K + 1]`, the probability that a step there accepts 0, 1, ... K tokens; 0 beyond a text.
    """
    number, longest, width = moves.shape
    begins = np.zeros((number, longest + width))
    begins[:, 0] = 1.0
    for i in range(longest):
        begins[:, i + 1 : i + 1 + width] += begins[:, i, None] * moves[:, i]
    return np.where(moves.any(axis=2), begins[:, :longest], 0.0)


def _begins_by_uncached(
    texts: Sequence[DraftedText], moves: Floats, drafted: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return the probability that a step with a draft begins at each position, and that one without, `[N, L]`.

    Args:
        texts: The texts.
        moves: As in `_begins`.
        drafted: `[N, L]`, the length of the draft at each position.
    """
    number, longest, width = moves.shape
    known = [text.uncached for text in texts if text.uncached is not None]
    over = max(one.most for one in known) + 1  # this number stands for more
    begins = np.zeros((number, longest + width, over + 1))
    rows = np.arange(number)
    begins[rows, 0, [min(one.begin, over) for one in known]] = 1.0
    for i in range(longest):
        begins[:, i + 1, 1] += begins[:, i, over]
        for accepted in range(width):
            reached = begins[:, i, :over] * moves[:, i, accepted, None]
            after = uncached_after(np.arange(over), drafted[:, i, None], accepted)
            np.add.at(begins[:, i + 1 + accepted], (rows[:, None], np.minimum(after, over)), reached)
    begins = np.where(moves.any(axis=2, keepdims=True), begins[:, :longest], 0.0)
    return begins[..., :over].sum(axis=2), begins[..., over]


def _padded(arrays: Sequence[Any], longest: int) -> Any:
    """Return arrays `[L, ...]` of different lengths as one, `[N, longest, ...]`, zero beyond the end of each."""
    whole = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for row, array in zip(whole, arrays, strict=True):
        row[: len(array)] = array
    return whole


@dataclass(frozen=True, eq=False)
class TextAcceptance:
    """Probabilities that decide on the acceptance along a recorded text of L tokens, for drafts of up to K tokens.

    Attributes:
        ratio: `[L, K]` float64. `ratio[i, j]` is q(y) / p(y) of the text's token y at position i + j, where q is
            that of token j of a draft that begins at position i and has followed the text so far. What lies beyond
            the text or the draft has no meaning.
        offered: `[L]` int64, the length of the draft that begins at each position.
        confidence: `[L, K]` float32, what a controller's `keep_drafting` would be told after each token: q of the
            text's token, and for greedy drafts the softmax probability of the argmax. NaN where it is not asked.
        tokens: `[L]` int64, the text.
        limit: The most tokens that the text could have had.
        reach: The most tokens that the text and a draft may have together: one less than the limit, since the last
            position is for the target's own token, or what the drafter's `max_length` leaves of it.
        uncached: What a recurrent target reads again; None for others.
        number: Number of the prompt.
        sample: Number of the text of this prompt.
        by_budget: The same for budgets of 1, 2, ... K tokens, for drafters whose drafts depend on it; else empty.
        least: `[L, K]` float64, the smallest q(x) / p(x) of all tokens x that p does not exclude; None where the
            record does not hold all of p.
    """

    ratio: NDArray[np.float64]
    offered: NDArray[np.int64]
    confidence: NDArray[np.float32]
    tokens: NDArray[np.int64]
    limit: int
    reach: int
    uncached: Uncached | None = None
    number: int = 0
    sample: int = 0
    by_budget: "tuple[TextAcceptance, ...]" = ()
    least: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def longest(self) -> int:
        """K, the longest draft that is known."""
        return int(self.ratio.shape[1])

    def room(self, position: int) -> int:
        """Return the number of tokens that may be drafted at a position."""
        return max(self.reach - position, 0)

    def asked(self, budget: int) -> "TextAcceptance":
        """Return the acceptance of drafts for which a number of tokens was asked."""
        return self.by_budget[budget - 1] if self.by_budget and budget else self

    def accept(self, rule: AcceptanceRule | None = None) -> NDArray[np.float64]:
        """Return the acceptance of draft tokens, `[L, K]` float64.

        `[i, j]` is the probability that token j of a draft that begins at position i is accepted, given the text
        and that the tokens before it in the draft were.

        Args:
            rule: The acceptance rule where the target samples; None for Algorithm 1, and in greedy decoding.

        Raises:
            ConfigError: The rule takes more of p than the record holds.
            PluginError: It fails, or answers with something else than probabilities.
        """
        rule = SpeculativeSampling() if rule is None else rule
        every = rule.config.replays_from == "all"
        if every and self.least is None:
            raise ConfigError(
                f"the rule {rule_name(rule)!r} cannot be replayed on this record: what it accepts depends on p of "
                "all tokens, which the record does not hold. Record with `--keep-top K`, where K is larger than "
                "the number of tokens that the sampling settings leave at any position, or use the rule `token`."
            )
        guard = PluginGuard(strict=True)
        with guard.calling(rule):
            found = rule.acceptance_given_text(self.ratio, self.least if every else None)
            if not (np.shape(found) == self.ratio.shape and bool(((found >= 0) & (found <= 1)).all())):
                raise PluginError(
                    "acceptance_given_text() must return probabilities, from 0 to 1, in an array of the shape of "
                    "`ratio`."
                )
        return found

    def drafted(self, gamma: int, rule: AcceptanceRule | None = None) -> DraftedText:
        """Return what follows for a fixed gamma, at most K; see `accept`."""
        if not self.by_budget or not gamma:
            return DraftedText(self.accept(rule), self.offered, self.reach, self.uncached)
        # Near the limit, fewer tokens are asked for.
        budgets = np.clip(self.reach - np.arange(len(self)), 1, gamma)
        accept, offered = np.zeros(self.ratio.shape), np.zeros(len(self), dtype=np.int64)
        for budget in np.unique(budgets).tolist():
            own, here = self.asked(budget), budgets == budget
            accept[here], offered[here] = own.accept(rule)[here], own.offered[here]
        return DraftedText(accept, offered, self.reach, self.uncached)


def rule_name(rule: AcceptanceRule) -> str:
    """Return the name of an acceptance rule, as messages give it."""
    return str(getattr(rule.config, "name", type(rule).__name__))


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
    drafted_first = counts.first_length @ np.arange(counts.first_length.shape[1])
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
        "timed_draft_calls": calls - float(np.maximum(drafted_first, 1 - counts.first_asked[:, 0]).sum()),
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


def _drawn(runs: "Iterable[_Run]", tokens: NDArray[np.float64], draws: int, *, timed: bool) -> Replayed:
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
