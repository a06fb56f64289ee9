"""Drafter and controllers during one batch, fenced off: what they do wrong costs speed, never a token."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor

from specdec_core.border import (
    BatchInfo,
    Drafter,
    DraftRequest,
    DraftSession,
    GammaController,
    GammaSession,
    LenienceController,
    LenienceSession,
    Outcome,
    Proposal,
    SessionInfo,
    StepReport,
)
from specdec_core.decoding.checking import check_form, trim
from specdec_core.decoding.drafting import DraftRecorder, Watcher
from specdec_core.decoding.result import PluginFailure
from specdec_core.errors import PluginError
from specdec_core.randomness import RowStreams
from specdec_core.sampling import Standardiser

T = TypeVar("T")


class Fence:
    """Calls into plugins; records what goes wrong instead of passing it on, unless strict.

    Args:
        strict: Raise instead.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self.step = 0
        self._failures: dict[tuple[str, str], PluginFailure] = {}

    @property
    def failures(self) -> tuple[PluginFailure, ...]:
        """What went wrong, in the order in which it first did."""
        return tuple(self._failures.values())

    def within(self) -> Fence:
        """Return a fence for a loop within this one: it counts its own steps, and records in the same list."""
        inner = Fence(strict=self._strict)
        inner._failures = self._failures
        return inner

    def call(self, plugin: object, function: Callable[[], T]) -> T | None:
        """Return what the function returns, or None when the plugin failed."""
        try:
            return function()
        except Exception as error:
            self.fail(plugin, error)
            return None

    def fail(self, plugin: object, error: Exception) -> None:
        """Record a failure.

        Raises:
            PluginError: Under `strict`, with the plugin's name.
        """
        name = type(plugin).__name__
        message = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        if self._strict:
            raise PluginError(f"{name} failed at step {self.step}: {message}") from error
        # A controller may fail in every step in the same way, with other numbers: that is one failure, so that
        # nothing grows with the steps.
        kind = name, re.sub(r"[-+.\d]+", "#", message)
        known = self._failures.get(kind, PluginFailure(name, self.step, message, times=0))
        self._failures[kind] = replace(known, times=known.times + 1)


class Speculation:
    """The guessing side of a batch: who drafts, how much, and what is told to whom.

    Args:
        drafter: Who drafts; None for plain decoding.
        gamma: How much.
        lenience: How strictly the draft is judged; None for exactly.
        standardiser: The settings for drafts.
        streams: The rows' random numbers.
        session: What drafters may know of the batch.
        batch: What controllers may know of it.
        fence: Where failures go.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        gamma: GammaController | None,
        lenience: LenienceController | None,
        standardiser: Standardiser,
        streams: RowStreams,
        session: SessionInfo,
        batch: BatchInfo,
        fence: Fence,
    ) -> None:
        self._info = session
        self._fence = fence
        self._device = torch.device(session.device)
        self.wants_hidden = drafter is not None and drafter.needs_hidden_states
        """Whether the drafter works on the target's hidden states."""
        self._drafter, self._gamma_plugin, self._lenience_plugin = drafter, gamma, lenience
        self._session: DraftSession | None = None
        self._gamma: GammaSession | None = None
        self._lenience: LenienceSession | None = None
        size = session.batch_size
        self._last_gamma = (0,) * size
        self._last_lenience: tuple[tuple[float, ...], ...] = ((1.0,),) * size
        self._recorder = DraftRecorder(
            standardiser, streams, size, session.vocab_size, session.max_gamma, self._device
        )
        if drafter is not None and gamma is not None:
            self._session = fence.call(drafter, lambda: _opened(drafter.open(session)))
            self._gamma = fence.call(gamma, lambda: _opened(gamma.open(batch)))
        if lenience is not None:
            self._lenience = fence.call(lenience, lambda: _opened(lenience.open(batch)))
        self.seconds = 0.0
        """Time the drafter took since the last `observe`."""
        self.asked = (0,) * size
        """The budget of this step: zeros where nobody was asked."""

    def propose(
        self, tokens: Sequence[Sequence[int]], room: Sequence[int], hidden: Tensor | None = None
    ) -> tuple[Proposal, bool]:
        """Ask for a draft.

        Args:
            tokens: The committed tokens of each row.
            room: How many tokens each row could take before its last one; 0 for finished rows.
            hidden: `[B, D]`, what each row's last token was predicted from, where that is kept.

        Returns:
            The proposal on the target's device, and whether its q needs no further check.
        """
        nothing = Proposal.empty(len(tokens), self._device), True
        self.asked = (0,) * len(tokens)
        session = self._session
        if session is None:
            return nothing
        wanted = self._next_gamma()
        budget = tuple(min(most, left) for most, left in zip(wanted, room, strict=True))
        if not any(budget):
            return nothing
        self.asked = budget
        begun = perf_counter()
        self._recorder.start(tokens, budget, self._watcher())
        request = DraftRequest(tokens, budget, self._recorder, hidden)
        made = self._guard(lambda: check_form(session.propose(request), budget, self._info.vocab_size))
        self.seconds += perf_counter() - begun
        if made is None:
            return nothing
        return trim(made, self._device), self._recorder.vouches_for(made)

    def _guard(self, function: Callable[[], T]) -> T | None:
        """Call into the drafter; a drafter that fails is not asked again in this batch."""
        result = self._fence.call(self._drafter, function)
        if result is None:
            self._drop()
        return result

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._fence.call(self._drafter, session.close)

    def reject(self, message: str) -> None:
        """Switch the drafter off: what it proposed was found wrong when it was verified."""
        self._fence.fail(self._drafter, PluginError(message))
        self._drop()

    def _next_gamma(self) -> tuple[int, ...]:
        gamma = self._gamma
        if gamma is not None:
            asked = self._fence.call(self._gamma_plugin, lambda: self._legal_gamma(gamma.gamma()))
            if asked is not None:
                self._last_gamma = asked
        return self._last_gamma

    def _watcher(self) -> Watcher | None:
        """Return what asks the controller whether to draft on; what it does wrong is not the drafter's fault."""
        gamma = self._gamma
        if gamma is None or not gamma.watches_confidence:
            return None

        def watch(confidence: Sequence[float]) -> Sequence[bool]:
            on = self._fence.call(self._gamma_plugin, lambda: _legal_answer(gamma.keep_drafting(confidence)))
            return [True] * len(confidence) if on is None else on

        def _legal_answer(on: Sequence[bool]) -> Sequence[bool]:
            if len(on) != self._info.batch_size:
                raise PluginError(
                    f"keep_drafting() answered for {len(on)} rows; the batch has {self._info.batch_size}. All "
                    "draft on."
                )
            return on

        return watch

    def _legal_gamma(self, asked: Sequence[int]) -> tuple[int, ...]:
        most = self._info.max_gamma
        if len(asked) != self._info.batch_size or not all(isinstance(n, int) and 0 <= n <= most for n in asked):
            raise PluginError(
                f"gamma {list(asked)} was asked for; {self._info.batch_size} whole numbers from 0 to max_gamma "
                f"({most}) are allowed. The last good gamma is kept."
            )
        return tuple(asked)

    def lenience(self, width: int) -> list[list[float]] | None:
        """Return l of each row and position of a draft of this width, `[B][width]`; None where all are 1."""
        session = self._lenience
        if session is None or not width:
            return None
        asked = self._fence.call(self._lenience_plugin, lambda: self._legal_lenience(session.lenience()))
        if asked is not None:
            self._last_lenience = asked
        rows = [[*row[:width], *row[-1:] * (width - len(row))] for row in self._last_lenience]
        return rows if any(value < 1 for row in rows for value in row) else None

    def _legal_lenience(self, asked: Sequence[float | Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        rows = tuple(tuple(row) if isinstance(row, Sequence) else (row,) for row in asked)
        if len(rows) != self._info.batch_size or not all(row and all(0 < x <= 1 for x in row) for row in rows):
            raise PluginError(
                f"lenience {list(asked)} was asked for; for each of {self._info.batch_size} rows a number in "
                "(0, 1], or some of them, are allowed. The last good lenience is kept."
            )
        return rows

    def commit(self, outcome: Outcome) -> None:
        """Tell the drafter what was kept."""
        session = self._session
        if session is None:
            return
        begun = perf_counter()
        self._guard(lambda: session.commit(outcome) or True)  # type: ignore[func-returns-value]
        self.seconds += perf_counter() - begun

    def rollback(self, lengths: Sequence[int]) -> None:
        """Have the drafter forget all but the first `lengths[b]` committed tokens of each row b."""
        session = self._session
        if session is None:
            return
        if not session.can_roll_back:
            self.reject(
                "within a hierarchy, commits are taken back when the level above refuses them; this drafter "
                "keeps state (it has a commit()) and must have a rollback(lengths) too."
            )
            return
        self._guard(lambda: session.rollback(lengths) or True)  # type: ignore[func-returns-value]

    def observe(self, report: StepReport) -> None:
        """Tell the controllers what became of the step."""
        for plugin, session in ((self._gamma_plugin, self._gamma), (self._lenience_plugin, self._lenience)):
            if session is not None:
                self._fence.call(plugin, partial(session.observe, report))
        self.seconds = 0.0

    def close(self) -> None:
        """Close the drafter's session."""
        self._drop()


def _opened(session: T | None) -> T:
    """Return a plugin's session, which must be there."""
    if session is None:
        raise PluginError("open() returned None; it must return a session.")
    return session
