"""The acceptance rule during one batch: a rule that fails costs speed, never a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_core.interface import AcceptanceResult, AcceptanceRule, PluginError, Proposal
from specdec_core.verification import SpeculativeSampling

if TYPE_CHECKING:
    from specdec_core.decoding.guard import PluginGuard

_RAISED = 2
"""Codes from here on stand in the place of `sound`, which a step fetches from the device anyway."""
REFUSALS = {
    _RAISED: "",  # recorded when it happened
    3: "it accepted more tokens than were drafted, or a negative number. Algorithm 1 takes its place.",
    4: "the token that it drew is not in the vocabulary (0 to {last}). Algorithm 1 takes its place.",
    5: "its deviation is negative or no number. Algorithm 1 takes its place.",
    6: "its path does not lead from the root of the tree from child to child. Algorithm 1 takes its place.",
}
"""What may be wrong with the values of a rule's answer."""


class Verifier:
    """Calls a rule and checks its answers; where the rule fails, Algorithm 1 takes its place for the batch.

    The core's own rule, Algorithm 1, is called as it is.

    Args:
        rule: The acceptance rule.
        guard: Records plugin failures.
    """

    def __init__(self, rule: AcceptanceRule, guard: PluginGuard) -> None:
        self._rule = rule
        self._guard = guard
        self._vocab_size = 0

    @property
    def trees(self) -> bool:
        """Whether the rule verifies token trees."""
        return self._rule.trees

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:
        """Verify a draft where the target samples; see `AcceptanceRule.sample`."""
        rule = self._rule
        if type(rule) is SpeculativeSampling:
            return rule.sample(proposal, p, lenience, uniforms)
        with self._guard.calling(rule, self._replace):
            self._vocab_size = p.shape[2]
            return checked_answer(proposal, p, rule.sample(proposal, p, lenience, uniforms))
        return _refused(proposal)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:
        """Verify a draft where the target decodes greedily; see `AcceptanceRule.greedy`."""
        rule = self._rule
        if type(rule) is SpeculativeSampling:
            return rule.greedy(proposal, scores, lenience)
        with self._guard.calling(rule, self._replace):
            self._vocab_size = scores.shape[2]
            return checked_answer(proposal, scores, rule.greedy(proposal, scores, lenience))
        return _refused(proposal)

    def refuses(self, sound: Sequence[int]) -> bool:
        """Return whether the last answer is to be discarded: Algorithm 1 has then taken the rule's place.

        Args:
            sound: The field of the answer, fetched from the device.
        """
        code = max(sound)
        if code < _RAISED:
            return False
        if code > _RAISED:
            self._guard.fail(self._rule, PluginError(REFUSALS[code].format(last=self._vocab_size - 1)))
            self._replace()
        return True

    def _replace(self) -> None:
        self._rule = SpeculativeSampling()


def checked_answer(proposal: Proposal, p: Tensor, made: object) -> AcceptanceResult:
    """Return a rule's answer with what is wrong with its values, one of `REFUSALS`, in the place of `sound`.

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
    _require("accepted", made.accepted, (batch,), torch.long, p.device)
    _require("token", made.token, (batch,), torch.long, p.device)
    _require("sound", made.sound, (batch,), torch.bool, p.device)
    lengths = torch.tensor(proposal.lengths, device=p.device)
    codes = made.sound.long()
    deviation = made.deviation
    if deviation is not None:
        _require("deviation", deviation, (batch, width), None, p.device)
        within = torch.arange(width, device=p.device) < lengths[:, None]
        bad = within & ~((deviation >= 0) & deviation.isfinite())
        codes = torch.where(bad.any(dim=1), 5, codes)
        deviation = torch.where(within & ~bad, deviation, 0)
    codes = torch.where((made.token < 0) | (made.token >= p.shape[2]), 4, codes)
    beyond = (made.accepted < 0) | (made.accepted > lengths)
    codes = torch.where(beyond, 3, codes)
    # Within bounds in any case: the core looks up hidden states by this number.
    accepted = torch.where(beyond, 0, made.accepted)
    path = None
    if proposal.parents is not None:
        _require("path", made.path, (batch, width), torch.long, p.device)
        assert made.path is not None
        path = made.path.clamp(0, max(width - 1, 0))
        before = torch.cat([torch.full_like(path[:, :1], -1), path[:, :-1]], dim=1)
        steps = torch.arange(width, device=p.device) < accepted[:, None]
        astray = (proposal.parents.gather(1, path) != before) | (path != made.path) | (path >= lengths[:, None])
        codes = torch.where((steps & astray).any(dim=1), 6, codes)
    return replace(made, accepted=accepted, sound=codes, deviation=deviation, path=path)


def _refused(proposal: Proposal) -> AcceptanceResult:
    """Return the answer in the place of one that there is not."""
    nothing = torch.zeros(len(proposal.lengths), dtype=torch.long, device=proposal.tokens.device)
    return AcceptanceResult(nothing, nothing, nothing + _RAISED)


def _require(
    name: str, value: object, shape: tuple[int, ...], dtype: torch.dtype | None, device: torch.device
) -> None:
    """Check the form of a field of an answer; dtype None takes any float type."""
    kind = "float" if dtype is None else str(dtype).removeprefix("torch.")
    expected = f"expected {kind} of shape {list(shape)} on {device}. Algorithm 1 takes its place."
    if not isinstance(value, Tensor):
        raise PluginError(f"{name} is a {type(value).__name__}; {expected}")
    right = value.is_floating_point() if dtype is None else value.dtype == dtype
    if not right or tuple(value.shape) != shape or value.device != device:
        given = f"{str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)} on {value.device}"
        raise PluginError(f"{name} is {given}; {expected}")
