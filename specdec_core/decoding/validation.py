"""Checks of a proposal before it is verified."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import replace
from operator import index

import torch
from torch import Tensor

from specdec_core.interface import Dense, PluginError, PointMass, Proposal, Sparse
from specdec_core.models.device import moved, uploaded
from specdec_core.models.run.cached_tree import lineage
from specdec_core.verification.distributions import density, drafted, possible, ragged

TOLERANCE = 1e-3
"""How far the sum of q may be from 1; half-precision softmaxes stay well below."""

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Data types of logits and probabilities."""
INTEGERS = (torch.int64, torch.int32)
"""Data types of ids."""

# What only the device can see is reported as a code for each position, fetched with the step's single transfer.
# The lower, the worse; a tensor of bool says whether q(x) > 0.
FINE, BAD_TOKEN, TOO_DEEP, BAD_PARENT, BAD_SUM, BAD_ID = 1, 0, -1, -2, -3, -4
FAULTS = {
    BAD_ID: "a draft token, or an id of its q, is outside the vocabulary (0 to {last}).",
    BAD_SUM: "q does not sum to 1 at a drafted position, or holds a negative number or NaN.",
    BAD_TOKEN: "q gives 0 (or NaN) to the very token that was drafted, so it was not drawn from q.",
    BAD_PARENT: "a draft token's parent does not come before it: parents are -1, or the number of an earlier one.",
    TOO_DEEP: "a path of the tree is longer than `DraftRequest.depth` allows.",
}


def validate(
    proposal: object,
    budget: tuple[int, ...],
    vocab_size: int,
    device: torch.device,
    depth: tuple[int, ...] | None = None,
) -> tuple[Proposal, Tensor | None]:
    """Check a proposal and bring it to the target's device, without synchronizing the device.

    Args:
        proposal: What the drafter returned.
        budget: The budget it was given, B numbers.
        vocab_size: V.
        device: The target's device.
        depth: The maximum length of a path of each sequence; None where it must be a line.

    Returns:
        A copy of the proposal, cut to its longest draft, with ids that no embedding crashes on; and `[B, K]`, one
        of the codes above for each position, which means nothing beyond a draft. None instead if nothing is wrong,
        as far as the CPU can tell, or can be.

    Raises:
        PluginError: It is not a proposal, exceeds the budget, or its parts do not fit together.
    """
    formed = check_form(proposal, budget, vocab_size)
    _check_depth(formed, depth)
    # Tensors on the CPU are checked there: it costs the device nothing.
    copy = copied(formed, formed.tokens.device if formed.tokens.is_cpu else device)
    checked, faults = _check_values(copy, vocab_size, depth or budget)
    if faults.is_cpu:
        wrong = worst(faults.tolist(), checked.lengths) != FINE
        there = checked if checked.tokens.device == device else copied(checked, device)
        return there, moved(faults, device) if wrong else None
    return checked, faults


def drawn(
    proposal: Proposal, budget: tuple[int, ...], device: torch.device, depth: tuple[int, ...] | None
) -> tuple[Proposal, Tensor | None]:
    """Return a proposal that the core drew, as `validate` does: its ids are legal, and its q sums to 1.

    Only its lengths may be the drafter's own, and NaN logits make q NaN. Nothing is copied.
    """
    lengths = _lengths(proposal.lengths, budget, proposal.tokens.shape[1])
    _check_depth(proposal, depth)
    made = _cut(replace(proposal, lengths=lengths), device)
    # The core rejects NaN before it draws from candidates, and a point mass holds no numbers.
    return made, possible(made) if isinstance(made.q, Dense) else None


def _check_depth(proposal: Proposal, depth: tuple[int, ...] | None) -> None:
    """Check that a tree was allowed, and that a line is no longer than a path may be.

    Raises:
        PluginError: It was not, or is.
    """
    if proposal.parents is not None and depth is None:
        raise PluginError(
            "a tree was proposed, but only a line can be verified here; leave `parents` out where "
            "`SessionInfo.trees` is False."
        )
    if proposal.parents is None and depth is not None:
        for row, (length, limit) in enumerate(zip(proposal.lengths, depth, strict=True)):
            if length > limit:
                raise PluginError(
                    f"a line of {length} tokens was proposed for row {row}; a path may have {limit} there "
                    "(`DraftRequest.depth`)."
                )


def worst(codes: Sequence[Sequence[int]], lengths: Sequence[int]) -> int:
    """Return the worst code `[B][K]` of the positions within drafts of these lengths."""
    rows = zip(codes, lengths, strict=True)
    return min((code for row, length in rows for code in row[:length]), default=FINE)


def check_form(proposal: object, budget: tuple[int, ...], vocab_size: int) -> Proposal:
    """Return the proposal if its types, shapes and lengths are right; its lengths become plain numbers.

    Raises:
        PluginError: It is not a proposal, exceeds the budget, or its parts do not fit together.
    """
    if not isinstance(proposal, Proposal):
        raise PluginError(f"propose() returned {type(proposal).__name__}; it must return a Proposal.")
    batch = len(budget)
    tokens = as_tensor(proposal.tokens, "tokens", "[B, K] int64")
    shape = tuple(tokens.shape)
    if len(shape) != 2 or shape[0] != batch or tokens.dtype != torch.long:
        raise PluginError(
            f"tokens of shape {shape} and dtype {tokens.dtype} were proposed; expected int64 [{batch}, K]."
        )
    lengths = _lengths(proposal.lengths, budget, shape[1])
    if proposal.parents is not None:
        parents = tuple(as_tensor(proposal.parents, "parents", "[B, K] int64", (torch.long,)).shape)
        if parents != shape:
            raise PluginError(f"parents have shape {parents}; that of tokens is {shape}.")
    _check_q(proposal.q, shape, vocab_size)
    return proposal if proposal.lengths is lengths else proposal.shortened(lengths)


def _lengths(given: object, budget: tuple[int, ...], columns: int) -> tuple[int, ...]:
    """Return lengths as plain numbers, each at most the row's budget and the number of columns."""
    lengths = _whole_numbers(given, len(budget))
    for row, (length, limit) in enumerate(zip(lengths, budget, strict=True)):
        if not 0 <= length <= limit:
            raise PluginError(f"{length} tokens were proposed for row {row}; its budget was {limit}.")
        if length > columns:
            raise PluginError(f"row {row} claims {length} tokens, but tokens has only {columns} columns.")
    return lengths


def _whole_numbers(given: object, batch: int) -> tuple[int, ...]:
    """Return lengths as plain numbers; whole numbers of numpy and torch are taken, too."""
    if type(given) is tuple and len(given) == batch and all(type(length) is int for length in given):
        return given
    try:
        lengths = tuple(int(index(length)) for length in given)  # type: ignore[attr-defined]
    except TypeError as error:
        raise PluginError(
            f"lengths {reprlib.repr(given)} were proposed; expected a tuple of {batch} whole numbers, the number "
            "of draft tokens of each row."
        ) from error
    if len(lengths) != batch:
        raise PluginError(f"{len(lengths)} lengths were proposed; there are {batch} rows.")
    return lengths


def as_tensor(value: object, what: str, expected: str, dtypes: tuple[torch.dtype, ...] | None = None) -> Tensor:
    """Return what a plugin gave if it is a tensor.

    Args:
        value: What it gave.
        what: What it is, for messages, as a plural.
        expected: What it must be, for messages.
        dtypes: The dtypes that it may have; None for any.

    Raises:
        PluginError: It is something else.
    """
    if not isinstance(value, Tensor):
        raise PluginError(f"{what} are a {type(value).__name__}; expected a tensor, {expected}.")
    if dtypes is not None and value.dtype not in dtypes:
        name = str(value.dtype).removeprefix("torch.")
        raise PluginError(f"{what} are of dtype {name}; expected {expected}.")
    return value


def _probabilities(value: object, what: str) -> Tensor:
    return as_tensor(value, what, "float, probabilities from 0 to 1", FLOATS)


def _check_q(q: object, shape: tuple[int, ...], vocab_size: int) -> None:
    if isinstance(q, Dense):
        probabilities = _probabilities(q.probabilities, "probabilities of dense q")
        got, expected = tuple(probabilities.shape), (*shape, vocab_size)
        if got != expected:
            raise PluginError(f"dense q has shape {got}; [B, K, V] is {expected} here.")
    elif isinstance(q, Sparse):
        ids = tuple(as_tensor(q.ids, "ids of sparse q", "int64", INTEGERS).shape)
        weights = tuple(_probabilities(q.probabilities, "probabilities of sparse q").shape)
        if ids != weights or len(ids) != 3 or ids[:2] != shape:
            raise PluginError(f"sparse q has ids {ids} and probabilities {weights}; both must be {[*shape, 'S']}.")
    elif not isinstance(q, PointMass):
        raise PluginError(f"q is a {type(q).__name__}; it must be PointMass, Sparse or Dense.")


def copied(proposal: Proposal, device: torch.device) -> Proposal:
    """Return a copy of the proposal on a device, cut to its longest draft.

    It is a copy even where nothing is cut or moved: the drafter may write to its own tensors until the draft is
    verified, and q must stay what the tokens were drawn from.
    """
    return _cut(proposal, device, copy=True)


def _cut(proposal: Proposal, device: torch.device, *, copy: bool = False) -> Proposal:
    """Return the proposal on a device, cut to its longest draft, with q in float32."""
    width, q = proposal.longest, proposal.q

    def part(values: Tensor, dtype: torch.dtype) -> Tensor:
        own = values[:, :width]
        there = moved(own, device, dtype)
        return there.clone() if copy and there is own else there

    if isinstance(q, Dense):
        q = Dense(part(q.probabilities, torch.float32))
    elif isinstance(q, Sparse):
        q = Sparse(part(q.ids, torch.long), part(q.probabilities, torch.float32))
    parents = None if proposal.parents is None or not width else part(proposal.parents, torch.long)
    return Proposal(part(proposal.tokens, torch.long), proposal.lengths, q, parents)


def _check_values(proposal: Proposal, vocab_size: int, depth: tuple[int, ...]) -> tuple[Proposal, Tensor]:
    """Check ids and probabilities on the device; return the proposal made safe, and a code per position."""
    proposal, outside = _clamp_ids(proposal, vocab_size)
    codes: Tensor | int = FINE
    if not isinstance(proposal.q, PointMass):
        codes = density(proposal.q, proposal.tokens) > 0  # not where q is NaN
    if proposal.parents is not None:
        proposal, wrong, deep = _safe_tree(proposal, proposal.parents, depth)
        codes = torch.where(wrong, BAD_PARENT, torch.where(deep, TOO_DEEP, codes))
    if not isinstance(proposal.q, PointMass):
        codes = torch.where(_wrong_sums(proposal.q), BAD_SUM, codes)
        proposal = replace(proposal, q=_zero_beyond(proposal.q, proposal))
    return proposal, torch.where(outside, BAD_ID, codes)


def _safe_tree(proposal: Proposal, parents: Tensor, depth: tuple[int, ...]) -> tuple[Proposal, Tensor, Tensor]:
    """Return the proposal as a tree of legal depth, and `[B, K]` bool each: wrong parents, and nodes too deep."""
    numbers = torch.arange(parents.shape[1], device=parents.device)
    wrong = (parents < -1) | (parents >= numbers)
    parents = parents.masked_fill(wrong, -1)
    limits = uploaded(depth, parents.device)[:, None]
    deep = lineage(parents).sum(dim=2) > limits
    return replace(proposal, parents=parents.masked_fill(deep, -1)), wrong, deep


def _wrong_sums(q: Sparse | Dense) -> Tensor:
    """Return `[B, K]` bool, where q does not sum to 1, is negative somewhere, or NaN."""
    weights = q.probabilities
    # In a form that NaN fails.
    return ~(((weights.sum(dim=2) - 1).abs() <= TOLERANCE) & (weights.amin(dim=2) >= 0))


def _zero_beyond(q: Sparse | Dense, proposal: Proposal) -> Sparse | Dense:
    """Return q with zeros beyond each draft, where anything is allowed but acceptance needs finite numbers."""
    if not ragged(proposal):
        return q
    return replace(q, probabilities=torch.where(drafted(proposal)[..., None], q.probabilities, 0))


def _clamp_ids(proposal: Proposal, vocab_size: int) -> tuple[Proposal, Tensor]:
    """Bring all ids into the vocabulary; return also `[B, K]` bool, where one was outside."""
    tokens, q = proposal.tokens.clamp(0, vocab_size - 1), proposal.q
    outside = tokens != proposal.tokens
    if isinstance(q, Sparse):
        ids = q.ids.clamp(0, vocab_size - 1)
        outside = outside | (ids != q.ids).any(dim=2)
        q = replace(q, ids=ids)
    return replace(proposal, tokens=tokens, q=q), outside
