"""What a proposal must satisfy before and after it is verified."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specdec_core.acceptance import density
from specdec_core.border import Dense, Overlay, PointMass, Proposal, Sparse
from specdec_core.errors import PluginError

TOLERANCE = 1e-3
"""How far q may be from summing to 1; half-precision softmaxes stay well below."""


def check_form(proposal: object, budget: tuple[int, ...], vocab_size: int) -> Proposal:
    """Return the proposal when its shapes are right; nothing here waits for a device.

    Args:
        proposal: What the drafter returned.
        budget: What it was asked for.
        vocab_size: V.

    Raises:
        PluginError: It is no proposal, has too many tokens, or its parts do not fit together.
    """
    if not isinstance(proposal, Proposal):
        raise PluginError(f"propose() returned {type(proposal).__name__}; it must return a Proposal.")
    shape = tuple(proposal.tokens.shape)
    if len(shape) != 2 or shape[0] != len(budget) or proposal.tokens.dtype != torch.long:
        raise PluginError(
            f"tokens of shape {shape} and dtype {proposal.tokens.dtype} were proposed; int64 [{len(budget)}, K] "
            "is wanted."
        )
    for row, (length, most) in enumerate(zip(proposal.lengths, budget, strict=True)):
        if not 0 <= length <= most:
            raise PluginError(f"{length} tokens were proposed for row {row}; its budget was {most}.")
        if length > shape[1]:
            raise PluginError(f"row {row} claims {length} tokens, but tokens has only {shape[1]} columns.")
    _check_q(proposal, shape, vocab_size)
    return proposal


def _check_q(proposal: Proposal, shape: tuple[int, ...], vocab_size: int) -> None:
    q = proposal.q
    if isinstance(q, Dense):
        got, wanted = tuple(q.probabilities.shape), (*shape, vocab_size)
        if got != wanted:
            raise PluginError(f"dense q has shape {got}; [B, K, V] is {wanted} here.")
    elif isinstance(q, Sparse):
        ids, weights = tuple(q.ids.shape), tuple(q.probabilities.shape)
        if ids != weights or len(ids) != 3 or ids[:2] != shape:
            raise PluginError(f"sparse q has ids {ids} and probabilities {weights}; both must be {[*shape, 'S']}.")
    elif isinstance(q, Overlay):
        _check_overlay(q, shape, vocab_size)
    elif not isinstance(q, PointMass):
        raise PluginError(f"q is a {type(q).__name__}; it must be PointMass, Sparse, Dense or Overlay.")


def _check_overlay(q: Overlay, shape: tuple[int, ...], vocab_size: int) -> None:
    ids, weights = tuple(q.ids.shape), tuple(q.probabilities.shape)
    background, scale = tuple(q.background.shape), tuple(q.scale.shape)
    if ids != weights or len(ids) != 3 or ids[:2] != shape or background != (vocab_size,) or scale != shape:
        raise PluginError(
            f"overlay q has ids {ids}, probabilities {weights}, background {background} and scale {scale}; "
            f"{[*shape, 'S']}, the same, {[vocab_size]} and {list(shape)} are wanted."
        )
    if q.ids.dtype not in (torch.int32, torch.long):
        raise PluginError(f"overlay q has ids of dtype {q.ids.dtype}; int32 or int64 are wanted.")


def trim(proposal: Proposal, device: torch.device) -> Proposal:
    """Return the proposal on the target's device, cut to its longest row."""
    width = proposal.longest
    q = proposal.q
    if isinstance(q, Dense):
        q = Dense(q.probabilities[:, :width].to(device, torch.float32, non_blocking=True))
    elif isinstance(q, Sparse):
        weights = q.probabilities[:, :width].to(device, torch.float32, non_blocking=True)
        q = Sparse(q.ids[:, :width].to(device, non_blocking=True), weights)
    elif isinstance(q, Overlay):
        q = Overlay(
            q.ids[:, :width].to(device, non_blocking=True),
            q.probabilities[:, :width].to(device, torch.float32, non_blocking=True),
            q.background.to(device, torch.float32, non_blocking=True),
            q.scale[:, :width].to(device, torch.float32, non_blocking=True),
        )
    return Proposal(
        proposal.tokens[:, :width].to(device, non_blocking=True), proposal.lengths, q, proposal.parents
    )


# What can only be seen on the device comes back as one number a row, with the step's single transfer.
FINE, BAD_ID, BAD_SUM, BAD_OWN, BAD_ORDER = range(5)
FAULTS = {
    BAD_ID: "a draft token, or an id of its q, is outside the vocabulary (0 to {last}).",
    BAD_SUM: "q does not sum to 1 at a drafted position, or holds a negative number or NaN.",
    BAD_OWN: "q gives 0 (or NaN) to the very token that was drafted, so it was not drawn from q.",
    BAD_ORDER: "q lists ids out of order, or one id with two probabilities.",
}


def inspect_draft(proposal: Proposal, vocab_size: int, *, trusted: bool) -> tuple[Proposal, Tensor]:
    """Judge what only the device can see, without waiting for it.

    Args:
        proposal: As the drafter made it, on the target's device.
        vocab_size: V.
        trusted: Whether the core drew it from logits, so that ids are legal and q sums to 1 if it is a number.

    Returns:
        The proposal with ids that no embedding will crash on, and `[B]` int64, one of the codes above a row.
    """
    fault = torch.zeros(len(proposal.lengths), dtype=torch.long, device=proposal.tokens.device)
    # Where the core draws from an overlay, it refuses what is no number before it draws.
    if trusted and isinstance(proposal.q, PointMass | Overlay):
        return proposal, fault
    lengths = torch.tensor(proposal.lengths, device=fault.device)
    drafted = torch.arange(proposal.tokens.shape[1], device=fault.device) < lengths[:, None]
    if not trusted:
        proposal, outside = _clamp_ids(proposal, vocab_size)
        fault = torch.where((outside & drafted).any(dim=1), BAD_ID, fault)
    if isinstance(proposal.q, PointMass):
        return proposal, fault
    # Both are negated, so that NaN counts as wrong.
    own = ~(density(proposal.q, proposal.tokens) > 0) & drafted
    fault = torch.where((fault == FINE) & own.any(dim=1), BAD_OWN, fault)
    if not trusted:
        sums = _wrong_sums(proposal.q)
        fault = torch.where((fault != BAD_ID) & (sums & drafted).any(dim=1), BAD_SUM, fault)
        if isinstance(proposal.q, Overlay):
            disorder = _out_of_order(proposal.q)
            fault = torch.where((fault != BAD_ID) & (disorder & drafted).any(dim=1), BAD_ORDER, fault)
        proposal = replace(proposal, q=_clean(proposal.q, drafted))
    return proposal, fault


def _wrong_sums(q: Sparse | Dense | Overlay) -> Tensor:
    """Return `[B, K]` bool, where q does not sum to 1, is negative somewhere, or NaN."""
    weights = q.probabilities
    sums, negative = weights.sum(dim=2), (weights < 0).any(dim=2)
    if isinstance(q, Overlay):
        ids = q.ids.long()
        again = torch.zeros_like(ids, dtype=torch.bool)
        again[..., 1:] = ids[..., 1:] == ids[..., :-1]
        below = q.background[ids].masked_fill(again, 0).sum(dim=2)
        sums = weights.masked_fill(again, 0).sum(dim=2) + q.scale * (q.background.sum() - below)
        negative = negative | (q.scale < 0) | (q.background < 0).any()
    return ~((sums - 1).abs() <= TOLERANCE) | negative


def _out_of_order(q: Overlay) -> Tensor:
    """Return `[B, K]` bool, where ids are not ascending, or repeated with another probability."""
    left, right = q.ids[..., :-1], q.ids[..., 1:]
    unlike = (left == right) & (q.probabilities[..., :-1] != q.probabilities[..., 1:])
    return ((left > right) | unlike).any(dim=2)


def _clean(q: Sparse | Dense | Overlay, drafted: Tensor) -> Sparse | Dense | Overlay:
    """Return q with numbers beyond each draft, where anything may be; the acceptance wants numbers there."""
    weights = q.probabilities.masked_fill(~drafted[..., None], 0)
    if isinstance(q, Overlay):
        return replace(q, probabilities=weights, scale=q.scale.masked_fill(~drafted, 0))
    return replace(q, probabilities=weights)


def _clamp_ids(proposal: Proposal, vocab_size: int) -> tuple[Proposal, Tensor]:
    """Bring all ids into range; return also `[B, K]` bool, where one was outside."""
    outside = (proposal.tokens < 0) | (proposal.tokens >= vocab_size)
    q = proposal.q
    if isinstance(q, Sparse):
        outside = outside | ((q.ids < 0) | (q.ids >= vocab_size)).any(dim=2)
        q = Sparse(q.ids.clamp(0, vocab_size - 1), q.probabilities)
    elif isinstance(q, Overlay):
        outside = outside | ((q.ids < 0) | (q.ids >= vocab_size)).any(dim=2)
        q = replace(q, ids=q.ids.clamp(0, vocab_size - 1))
    return Proposal(proposal.tokens.clamp(0, vocab_size - 1), proposal.lengths, q, proposal.parents), outside
