"""Calls of the acceptance rule: one that fails costs speed, never a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_core.decoding.drafting.validation import as_tensor, copied
from specdec_core.interface import AcceptanceResult, AcceptanceRule, PluginError, Proposal
from specdec_core.verification import SpeculativeSampling
from specdec_core.verification.drawing import lengths_of

if TYPE_CHECKING:
    from specdec_core.decoding.guard.plugin_guard import PluginGuard

_RAISED = 2
"""Codes from here on replace `sound`, which a step fetches from the device anyway."""
REFUSALS = {
    _RAISED: "",  # recorded when it happened
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
            self._algorithm_1 = None
            return rule.sample(proposal, p, lenience, uniforms)
        self._algorithm_1 = lambda: SpeculativeSampling().sample(proposal, p, lenience, uniforms)
        with self._guard.calling(rule, self._replace):
            self._vocab_size = p.shape[2]
            given = copied(proposal, p.device), p.clone(), _clone(lenience), uniforms.clone()
            return checked_answer(proposal, p, rule.sample(*given))
        return _refused(proposal)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:
        """Verify a draft where the target decodes greedily; see `AcceptanceRule.greedy`."""
        rule = self._rule
        if type(rule) is SpeculativeSampling:
            self._algorithm_1 = None
            return rule.greedy(proposal, scores, lenience)
        self._algorithm_1 = lambda: SpeculativeSampling().greedy(proposal, scores, lenience)
        with self._guard.calling(rule, self._replace):
            self._vocab_size = scores.shape[2]
            given = copied(proposal, scores.device), scores.clone(), _clone(lenience)
            return checked_answer(proposal, scores, rule.greedy(*given))
        return _refused(proposal)

    def instead(self, sound: Sequence[int], finished: Sequence[bool]) -> AcceptanceResult | None:
        """Return Algorithm 1's answer if the rule's last one is to be discarded; it has then replaced the rule.

        Args:
            sound: The field of the answer, fetched from the device.
            finished: Whether each sequence has ended, so that its answer does not matter.
        """
        code = max(sound)
        unsound = any(not one and not over for one, over in zip(sound, finished, strict=True))
        again = self._algorithm_1
        if again is None or (code < _RAISED and not unsound):
            return None
        answer = again()
        if code > _RAISED:
            self._guard.fail(self._rule, PluginError(REFUSALS[code].format(last=self._vocab_size - 1)))
        elif code < _RAISED and all(map(max, answer.sound.tolist(), finished)):
            self._guard.fail(self._rule, PluginError(_UNSOUND))
        self._replace()
        return answer

    def _replace(self) -> None:
        self._rule = SpeculativeSampling()


def _clone(lenience: Tensor | None) -> Tensor | None:
    return None if lenience is None else lenience.clone()


def checked_answer(proposal: Proposal, p: Tensor, made: object) -> AcceptanceResult:
    """Return a rule's answer with what is wrong with its values, one of `REFUSALS`, instead of `sound`.

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
    accepted = _part("accepted", made.accepted, (batch,), torch.long, p.device)
    token = _part("token", made.token, (batch,), torch.long, p.device)
    codes = _part("sound", made.sound, (batch,), torch.bool, p.device).long()
    lengths = lengths_of(proposal)
    deviation = made.deviation
    if deviation is not None:
        deviation = _part("deviation", deviation, (batch, width), None, p.device)
        within = torch.arange(width, device=p.device) < lengths[:, None]
        bad = within & ~((deviation >= 0) & (deviation <= _MOST_DEVIATION))
        codes = torch.where(bad.any(dim=1), 5, codes)
        deviation = torch.where(within & ~bad, deviation, 0)
    codes = torch.where((token < 0) | (token >= p.shape[2]), 4, codes)
    beyond = (accepted < 0) | (accepted > lengths)
    codes = torch.where(beyond, 3, codes)
    # Within bounds in any case: the core looks up hidden states by this number.
    accepted = torch.where(beyond, 0, accepted)
    path = None
    if proposal.parents is not None:
        given = _part("path", made.path, (batch, width), torch.long, p.device)
        path = given.clamp(0, max(width - 1, 0))
        before = torch.cat([torch.full_like(path[:, :1], -1), path[:, :-1]], dim=1)
        steps = torch.arange(width, device=p.device) < accepted[:, None]
        astray = (proposal.parents.gather(1, path) != before) | (path != given) | (path >= lengths[:, None])
        codes = torch.where((steps & astray).any(dim=1), 6, codes)
    return AcceptanceResult(accepted, token, codes, deviation, path)


def _refused(proposal: Proposal) -> AcceptanceResult:
    """Return an answer that stands for a missing one."""
    nothing = torch.zeros(len(proposal.lengths), dtype=torch.long, device=proposal.tokens.device)
    return AcceptanceResult(nothing, nothing, nothing + _RAISED)


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
