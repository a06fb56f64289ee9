"""Calls of the acceptance rule: one that fails costs speed, never a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_core.decoding.drafting.validation import as_tensor, copied
from specdec_core.interface import AcceptanceResult, AcceptanceRule, PluginError, Proposal
from specdec_core.verification import SpeculativeSampling

if TYPE_CHECKING:
    from specdec_core.decoding.decision import Verified
    from specdec_core.decoding.guard import PluginGuard

REFUSALS = {
    3: "it accepted more tokens than were drafted, or a negative number. Algorithm 1 takes its place.",
    4: "the token that it drew is not in the vocabulary (0 to {last}). Algorithm 1 takes its place.",
    5: "its deviation is not a number from 0 to 1. Algorithm 1 takes its place.",
    6: "its path does not lead from the root of the tree from child to child. Algorithm 1 takes its place.",
}
"""Faults in the values of a rule's answer."""
_UNSOUND = "sound is False although the target's distribution is one. Algorithm 1 takes its place."
_MOST_DEVIATION = 1.001
"""A total variation is at most 1; sums over a large vocabulary in float32 exceed that a little."""


class GuardedRule:
    """Calls a rule and checks its answers; where the rule fails, Algorithm 1 takes its place for the batch.

    The core's own rule, Algorithm 1, is called as it is. Others get copies: whatever a rule does to what it was
    given, Algorithm 1 verifies the same draft with the same random numbers if it replaces the rule.

    Args:
        rule: The acceptance rule.
        guard: Records plugin failures.
    """

    def __init__(self, rule: AcceptanceRule, guard: PluginGuard) -> None:
        self._rule = rule
        self._guard = guard
        self._vocab_size = 0
        self._failed = False
        self._algorithm_1: Callable[[], AcceptanceResult] | None = None

    @property
    def algorithm_1(self) -> bool:
        """Whether drafts are verified by Algorithm 1."""
        return type(self._rule) is SpeculativeSampling

    @property
    def name(self) -> str:
        """The rule's class."""
        return type(self._rule).__name__

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:
        """Verify a draft where the target samples; see `AcceptanceRule.sample`."""
        rule = self._rule
        if type(rule) is SpeculativeSampling:
            return rule.sample(proposal, p, lenience, uniforms)
        self._algorithm_1 = lambda: SpeculativeSampling().sample(proposal, p, lenience, uniforms)
        with self._guard.calling(rule, self._replace):
            self._vocab_size = p.shape[2]
            given = copied(proposal, p.device), p.clone(), _clone(lenience), uniforms.clone()
            return checked_answer(proposal, p, rule.sample(*given))
        return self._refused(proposal)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:
        """Verify a draft where the target decodes greedily; see `AcceptanceRule.greedy`."""
        rule = self._rule
        if type(rule) is SpeculativeSampling:
            return rule.greedy(proposal, scores, lenience)
        self._algorithm_1 = lambda: SpeculativeSampling().greedy(proposal, scores, lenience)
        with self._guard.calling(rule, self._replace):
            self._vocab_size = scores.shape[2]
            given = copied(proposal, scores.device), scores.clone(), _clone(lenience)
            return checked_answer(proposal, scores, rule.greedy(*given))
        return self._refused(proposal)

    def instead(
        self, verified: Verified, sound: Sequence[int], finished: Sequence[bool]
    ) -> AcceptanceResult | None:
        """Return Algorithm 1's answer if the rule's last one is to be discarded; it has then replaced the rule.

        Args:
            verified: What was fetched of the answer.
            sound: The field of the answer, fetched too.
            finished: Whether each sequence has ended, so that its answer does not matter.
        """
        again, self._algorithm_1 = self._algorithm_1, None
        if again is None:
            return None
        code = 0 if self._failed else wrong_values(verified, sound, self._vocab_size)
        unsound = any(not one and not over for one, over in zip(sound, finished, strict=True))
        if not (self._failed or code or unsound):
            return None
        answer = again()
        if code:
            self._guard.fail(self._rule, PluginError(REFUSALS[code].format(last=self._vocab_size - 1)))
        elif not self._failed and all(map(max, answer.sound.tolist(), finished)):
            self._guard.fail(self._rule, PluginError(_UNSOUND))
        self._replace()
        return answer

    def _replace(self) -> None:
        self._rule = SpeculativeSampling()

    def _refused(self, proposal: Proposal) -> AcceptanceResult:
        """Return an answer that stands for a missing one."""
        self._failed = True
        nothing = torch.zeros(len(proposal.lengths), dtype=torch.long, device=proposal.tokens.device)
        return AcceptanceResult(nothing, nothing, nothing == 0)


def _clone(lenience: Tensor | None) -> Tensor | None:
    return None if lenience is None else lenience.clone()


def checked_answer(proposal: Proposal, p: Tensor, made: object) -> AcceptanceResult:
    """Return a rule's answer if it has the right form.

    Args:
        proposal: The draft `[B, K]` that was verified.
        p: `[B, K + 1, V]`, the target's distributions or scores.
        made: What the rule returned.

    Raises:
        PluginError: It has the wrong form.
    """
    if not isinstance(made, AcceptanceResult):
        raise PluginError(f"it returned an object of type {type(made).__name__}, not an AcceptanceResult.")
    batch, width = proposal.tokens.shape
    deviation, path = made.deviation, None
    if deviation is not None:
        deviation = _part("deviation", deviation, (batch, width), None, p.device)
    if proposal.parents is not None:
        path = _part("path", made.path, (batch, width), torch.long, p.device)
    return AcceptanceResult(
        _part("accepted", made.accepted, (batch,), torch.long, p.device),
        _part("token", made.token, (batch,), torch.long, p.device),
        _part("sound", made.sound, (batch,), torch.bool, p.device),
        deviation,
        path,
    )


def wrong_values(verified: Verified, sound: Sequence[int], vocab_size: int) -> int:
    """Return what is wrong with the values of a rule's answer, the highest of `REFUSALS`; 0 if nothing is.

    A token that could not be drawn means nothing.
    """
    found = 0
    for row, (length, accepted) in enumerate(zip(verified.lengths, verified.accepted, strict=True)):
        costs = verified.deviation[row] if verified.deviation else ()
        if not all(0 <= cost <= _MOST_DEVIATION for cost in costs):
            found = max(found, 5)
        if sound[row] and not 0 <= verified.token[row] < vocab_size:
            found = max(found, 4)
        if not 0 <= accepted <= length:
            found = max(found, 3)
        elif verified.paths is not None and verified.parents is not None:
            before = -1
            for node in verified.paths[row]:
                if not 0 <= node < length or verified.parents[row][node] != before:
                    found = max(found, 6)
                    break
                before = node
    return found


def _part(
    name: str, value: object, shape: tuple[int, ...], dtype: torch.dtype | None, device: torch.device
) -> Tensor:
    """Return a field of an answer; dtype None takes any float type.

    Raises:
        PluginError: It has the wrong form.
    """
    kind = "float" if dtype is None else str(dtype).removeprefix("torch.")
    expected = f"{kind} of shape {list(shape)} on {device}. Algorithm 1 takes its place"
    if not isinstance(value, Tensor):
        raise PluginError(f"{name} is a {type(value).__name__}; expected {expected}.")
    right = value.is_floating_point() if dtype is None else value.dtype == dtype
    if not right or tuple(value.shape) != shape or value.device != device:
        given = f"{str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)} on {value.device}"
        raise PluginError(f"{name} is {given}; expected {expected}.")
    return as_tensor(value, f"values of {name}", expected)
