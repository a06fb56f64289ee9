"""The proposer: asks the drafter for as many tokens as the gamma controller allows, and reports the outcome."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from types import MappingProxyType

import torch
from torch import Tensor

from specdec_core.decoding.drawing import DraftRecorder, KeepDrafting
from specdec_core.decoding.guard import PluginGuard, opened
from specdec_core.decoding.validation import FAULTS, validate
from specdec_core.interface import (
    BatchInfo,
    BestFirstTree,
    Drafter,
    DraftSession,
    GammaController,
    GammaSession,
    Outcome,
    PluginError,
    Proposal,
    SessionInfo,
    StepReport,
    TokenTree,
)
from specdec_core.interface.tree import TreeShape

_FAILURES = 3
"""So many steps in a row may fail before the drafter is switched off."""


class Proposer:
    """Drafter and gamma controller during one batch. A plugin that fails costs speed, never a token.

    A proposal that fails costs its step; after the third in a row, the drafter is switched off. It is switched off
    at once where it fails to open a session, or to be told what was committed, since it cannot go on.

    Args:
        drafter: The drafter; None for autoregressive decoding.
        gamma: Decides how many tokens are drafted.
        request: Draws draft tokens and records their q.
        info: What drafters know about the batch.
        batch: What controllers know about the batch.
        guard: Records plugin failures.

    Attributes:
        request: The request of every step.
        asked: The budget of this step; zeros if nothing was to be drafted.
        seconds: Wall time of the drafter since the last `observe`.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        gamma: GammaController | None,
        request: DraftRecorder,
        info: SessionInfo,
        batch: BatchInfo,
        guard: PluginGuard,
    ) -> None:
        self._drafter, self._gamma = drafter, gamma
        self.request = request
        self._info = info
        self._max_gamma = batch.max_gamma
        self._device = torch.device(info.device)
        self._guard = guard
        self._draft_session: DraftSession | None = None
        self._gamma_session: GammaSession | None = None
        self._watches = False
        self._lines_only = "" if info.trees else "the target, the acceptance rule or the lenience takes lines only"
        self._last_plan: tuple[int, ...] | TreeShape = (0,) * info.batch_size
        self.asked = self._nothing_asked = (0,) * info.batch_size
        self.seconds = 0.0
        self._failures = 0
        self._failed = False
        if drafter is not None and gamma is not None:
            with guard.calling(drafter):
                limit = drafter.max_length
                if not (limit is None or isinstance(limit, int)):
                    raise PluginError(f"max_length is {limit!r}; it must be a whole number, or None for no limit.")
                self._draft_session = opened(drafter.open(info))
                if not drafter.drafts_trees:
                    self._lines_only = f"{type(drafter).__name__} drafts lines only"
            with guard.calling(gamma):
                self._gamma_session = opened(gamma.open(batch))
                self._watches = bool(self._gamma_session.uses_confidence)

    @property
    def session(self) -> DraftSession | None:
        """The drafter's session; None without a drafter, or after it has failed."""
        return self._draft_session

    def propose(
        self,
        tokens: Sequence[Sequence[int]],
        room: Sequence[int],
        hidden_states: Mapping[int, Tensor] = MappingProxyType({}),
        waiting: Sequence[int] = (),
    ) -> tuple[Proposal, Tensor | None]:
        """Ask the drafter for a proposal.

        Args:
            tokens: The committed tokens of each sequence.
            room: The number of tokens each sequence has room for before its last one; 0 for finished sequences.
            hidden_states: Those that the drafter needs, if this step has them; see `DraftRequest`.
            waiting: How many tokens of each sequence take the place of draft tokens; none by default.

        Returns:
            The proposal on the target's device, and `[B, K]`, what is wrong with it; see `validate`.
        """
        self.asked = self._nothing_asked
        session = self._draft_session
        if session is not None and self._drafter is not None:
            budget, depth, tree = self._plan(self._drafter.clipped(tokens, room, self._guard.note), waiting)
            if any(budget):
                begun = perf_counter()
                self._failures = self._failures if self._failed else 0
                self._failed = False
                with self._guard.calling(self._drafter, self._step_failed):
                    if self._drafter.ready(hidden_states):
                        self.asked = budget
                        self.request.start(tokens, budget, hidden_states, self._keep_drafting(), tree, depth)
                        try:
                            made = session.propose(self.request)
                        finally:
                            self.seconds += perf_counter() - begun
                        return self._checked(made, budget, depth if self._info.trees else None)
        return Proposal.empty(len(tokens), self._device), None

    def _checked(
        self, made: object, budget: tuple[int, ...], depth: tuple[int, ...] | None
    ) -> tuple[Proposal, Tensor | None]:
        """Return a drafter's answer and its faults. What the core drew itself is not checked again."""
        request = self.request
        if (reason := request.uncaptured) is not None:
            self._guard.note(f"compile: {reason}, so that drafts are captured pass by pass.")
        if isinstance(made, Proposal) and request.made(made):
            return request.checked(made, depth)
        return validate(made, budget, self._info.vocab_size, self._device, depth)

    def reject(self, fault: int) -> None:
        """Count a failure of the drafter: its proposal turned out to be wrong when it was verified.

        Args:
            fault: One of the codes in `FAULTS`.
        """
        self._guard.fail(self._drafter, PluginError(FAULTS[fault].format(last=self._info.vocab_size - 1)))
        self._step_failed()

    def _step_failed(self) -> None:
        self._failed = True
        self._failures += 1
        if self._failures == _FAILURES:
            self._drop_drafter()

    def _drop_drafter(self) -> None:
        session, self._draft_session = self._draft_session, None
        if session is not None:
            with self._guard.calling(self._drafter):
                session.close()

    def _plan(
        self, room: Sequence[int], waiting: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...], TreeShape | None]:
        """Return the budget of each sequence, the length that a path of it may have, and the tree if it is one."""
        session = self._gamma_session
        if session is not None:
            with self._guard.calling(self._gamma):
                asked = session.plan()
                if asked is not self._last_plan:  # a tuple or a tree that has been checked cannot change
                    self._last_plan = checked_plan(asked, self._info.batch_size, self._max_gamma)
        plan = self._last_plan
        if isinstance(plan, tuple):
            if waiting:
                room = [
                    min(left, max(most - held, 0)) for left, most, held in zip(room, plan, waiting, strict=True)
                ]
            budget = tuple(map(min, plan, room))
            return budget, budget, None
        most = min(len(plan), self._info.max_gamma)
        depth = tuple(min(left, plan.depth) for left in room)
        if self._lines_only:
            self._guard.note(f"a tree was asked for, but {self._lines_only}; lines are drafted.")
            return depth, depth, None
        return tuple(min(most, sum(plan.widths[:left])) for left in depth), depth, plan

    def _keep_drafting(self) -> KeepDrafting | None:
        """Return the callback that asks the controller after each draft token, or None if it does not use that."""
        session = self._gamma_session
        if session is None or not self._watches:
            return None

        def keep_drafting(confidence: Sequence[float]) -> Sequence[bool]:
            # Guarded by itself: what the controller does wrong is not the drafter's failure.
            with self._guard.calling(self._gamma):
                batch = self._info.batch_size
                answer = [bool(more) for more in session.keep_drafting(confidence)]
                if len(answer) == batch:
                    return answer
                raise PluginError(
                    f"keep_drafting() answered for {len(answer)} rows; the batch has {batch}. All sequences keep "
                    "drafting."
                )
            return [True] * self._info.batch_size

        return keep_drafting

    def commit(self, outcome: Outcome) -> None:
        """Report to the drafter what was committed."""
        self.request.settle()
        session = self._draft_session
        if session is not None:
            begun = perf_counter()
            with self._guard.calling(self._drafter, self._drop_drafter):
                session.commit(outcome)
            self.seconds += perf_counter() - begun  # also of a call that raised

    def rollback(self, lengths: Sequence[int]) -> None:
        """Have the drafter keep only the first `lengths[b]` committed tokens of each sequence b."""
        session = self._draft_session
        if session is not None:
            with self._guard.calling(self._drafter, self._drop_drafter):
                session.rollback(lengths)

    def observe(self, report: StepReport) -> None:
        """Report the step to the gamma controller."""
        self._guard.step = report.step + 1
        self.seconds = 0.0
        if self._gamma_session is not None:
            with self._guard.calling(self._gamma):
                self._gamma_session.observe(report)

    def close(self) -> None:
        """Close the drafter's session."""
        self._drop_drafter()


def checked_plan(asked: object, count: int, limit: int) -> tuple[int, ...] | TreeShape:
    """Return the plan of a gamma controller.

    Args:
        asked: A number for each sequence, or a tree.
        count: Number of sequences.
        limit: The controller's `max_gamma`.

    Raises:
        PluginError: It asks for something else.
    """
    if isinstance(asked, TokenTree | BestFirstTree):
        if len(asked) <= limit:
            return asked
        raise PluginError(f"a tree of {len(asked)} nodes was asked for; max_gamma is {limit}.")
    given = tuple(asked) if isinstance(asked, Iterable) else (asked,)
    if len(given) != count or not all(isinstance(n, int) and 0 <= n <= limit for n in given):
        raise PluginError(
            f"gamma {reprlib.repr(list(given))} was asked for; expected {count} whole numbers from 0 to max_gamma "
            f"({limit}), or a TokenTree or BestFirstTree of at most as many nodes."
        )
    return given
