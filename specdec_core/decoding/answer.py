"""The answer to a draft: what an acceptance rule decided on the device, and the same as Python's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from specdec_core.decoding.validation import FINE, worst
from specdec_core.interface import AcceptanceResult, AcceptanceRule, PluginError, Proposal
from specdec_core.models.device import fetched
from specdec_core.verification import SpeculativeSampling
from specdec_core.verification.acceptance import accept_on_cpu

T = TypeVar("T")

_MOST_DEVIATION = 1.001
"""A total variation is at most 1; sums over a large vocabulary in float32 exceed that a little."""
_EXPONENT = 0x7F800000
"""The bits of a float32 that are all 1 where it is infinite or NaN."""


@dataclass
class Answered:
    """The answer to a draft; a list entry for each row.

    Attributes:
        lengths: Number of draft tokens; 0 in all rows if the draft turned out to be wrong.
        draft: The draft tokens.
        accepted: n of Algorithm 1.
        token: The recovered or bonus token.
        deviation: What lenience costs at each draft token; empty where l = 1.
        parents: The parent of each draft token; None for lines.
        paths: The numbers of the accepted draft tokens; None for lines.
        sound: Whether the token was drawn from a distribution.
        fault: The worst fault of the draft, a code of `validation`.
    """

    lengths: tuple[int, ...]
    draft: list[list[int]]
    accepted: list[int]
    token: list[int]
    deviation: list[list[float]]
    parents: list[list[int]] | None
    paths: list[list[int]] | None
    sound: Sequence[bool]
    fault: int

    @property
    def last(self) -> list[int]:
        """The column of logits that the next token of each row was drawn from."""
        if self.paths is None:
            return self.accepted
        return [path[-1] + 1 if path else 0 for path in self.paths]

    def tokens(self, row: int) -> list[int]:
        """Return the accepted tokens of a row and the one that follows them."""
        draft = self.draft[row]
        accepted = draft[: self.accepted[row]] if self.paths is None else [draft[node] for node in self.paths[row]]
        return [*accepted, self.token[row]]


@dataclass(frozen=True)
class Best:
    """The target's best token at each position: all that verifying a greedy draft by Algorithm 1 needs.

    Python follows a draft along them in less time than launching operators takes.

    Attributes:
        tokens: `[B, K + 1]` int64.
        scores: `[B, K + 1]` float32, theirs.
    """

    tokens: Tensor
    scores: Tensor


def decide(
    rule: AcceptanceRule, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor | None
) -> AcceptanceResult | Best:
    """Apply an acceptance rule.

    Args:
        rule: The rule.
        proposal: The draft `[B, K]`.
        p: `[B, K + 1, V]` float32, the target's adjusted distributions; its scores where it decodes greedily.
        lenience: `[B, K]` float, or None for 1.
        uniforms: The random numbers `[B, K + 1]` float64; None where the target decodes greedily.

    Returns:
        The answer of the rule, or what it follows from.

    Raises:
        PluginError: The answer of a rule other than Algorithm 1 has the wrong form.
    """
    if type(rule) is SpeculativeSampling:
        if uniforms is not None:
            return rule.sample(proposal, p, lenience, uniforms)
        if lenience is not None:
            return rule.greedy(proposal, p, lenience)
        largest, tokens = p.max(dim=2)
        return Best(tokens, largest)
    made = rule.greedy(proposal, p, lenience) if uniforms is None else rule.sample(proposal, p, lenience, uniforms)
    check_form(proposal, p, made)
    return made


def check_form(proposal: Proposal, p: Tensor, made: object) -> None:
    """Check the types, shapes and devices of a rule's answer.

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
    wanted: dict[str, tuple[object, tuple[int, ...], tuple[torch.dtype, ...]]] = {
        "accepted": (made.accepted, (batch,), (torch.long,)),
        "token": (made.token, (batch,), (torch.long,)),
        "sound": (made.sound, (batch,), (torch.bool,)),
    }
    if made.deviation is not None:
        floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
        wanted["deviation"] = made.deviation, (batch, width), floats
    if proposal.parents is not None:
        wanted["path"] = made.path, (batch, width), (torch.long,)
    for name, (value, shape, dtypes) in wanted.items():
        if isinstance(value, Tensor):
            if tuple(value.shape) == shape and value.dtype in dtypes and value.device == p.device:
                continue
            given = f"{value.dtype} of shape {list(value.shape)} on {value.device}"
        else:
            given = f"a {type(value).__name__}"
        raise PluginError(
            f"{name} is {given}; expected {dtypes[0]} of shape {list(shape)} on {p.device}. Algorithm 1 takes its "
            "place."
        )


def wrong_values(answered: Answered, vocab_size: int) -> str:
    """Return what is wrong with the numbers of a rule's answer, or an empty text.

    A token that could not be drawn means nothing.
    """
    for row, (length, accepted) in enumerate(zip(answered.lengths, answered.accepted, strict=True)):
        costs = answered.deviation[row] if answered.deviation else ()
        if not 0 <= accepted <= length:
            return f"it accepted {accepted} of {length} draft tokens."
        if answered.sound[row] and not 0 <= answered.token[row] < vocab_size:
            return f"it drew the token {answered.token[row]}, outside the vocabulary (0 to {vocab_size - 1})."
        if not all(0 <= cost <= _MOST_DEVIATION for cost in costs):
            return f"its deviation is {costs}; expected numbers from 0 to 1."
        if answered.paths is not None and answered.parents is not None:
            path, parents = answered.paths[row], answered.parents[row]
            inside = all(0 <= node < length for node in path)
            if not inside or [parents[node] for node in path] != [-1, *path][: len(path)]:
                return f"its path {path} does not lead from the root of the tree from child to child."
    return ""


def tensors_of(proposal: Proposal, result: AcceptanceResult | Best, faults: Tensor | None) -> dict[str, Tensor]:
    """Return what Python has to know about an answer, whole numbers by name, for one transfer.

    Args:
        proposal: The draft.
        result: The answer of a rule, or what it follows from.
        faults: `[B, K]`, a code for each position; None if nothing can be wrong with the draft.
    """
    parts: dict[str, Tensor | None] = {"draft": proposal.tokens, "faults": faults, "parents": proposal.parents}
    if isinstance(result, Best):
        parts |= {"best": result.tokens, "scores": result.scores.view(torch.int32)}
    else:
        # The bits of float64 are whole numbers, too.
        deviation = None if result.deviation is None else result.deviation.double().view(torch.int64)
        path = None if proposal.parents is None else result.path
        parts |= {"accepted": result.accepted, "token": result.token, "sound": result.sound}
        parts |= {"deviation": deviation, "path": path}
    return {name: part for name, part in parts.items() if part is not None}


def fetch(proposal: Proposal, result: AcceptanceResult | Best, faults: Tensor | None = None) -> Answered:
    """Return an answer as Python's numbers, in one transfer from the device; see `tensors_of`."""
    parts = tensors_of(proposal, result, faults)
    return read(dict(zip(parts, fetched(*parts.values()), strict=True)), proposal.lengths)


def read(lists: Mapping[str, Any], lengths: tuple[int, ...]) -> Answered:
    """Return the answer.

    Args:
        lists: The tensors of `tensors_of`, fetched. In place of scores, `finite` may say whether that of the best
            token is finite, given a row and a position of it.
        lengths: Number of draft tokens of each row.
    """
    draft, faults, parents = lists["draft"], lists.get("faults"), lists.get("parents")
    if "best" in lists:
        finite = lists.get("finite", lambda row, at: lists["scores"][row][at] & _EXPONENT != _EXPONENT)
        found: tuple[Any, ...] = _followed(lists["best"], finite, draft, parents, lengths)
    else:
        found = lists["accepted"], lists["token"], lists["sound"], lists.get("path")
    accepted, token, sound, paths = found
    costs = lists.get("deviation")
    return Answered(
        lengths=lengths,
        draft=cut(draft, lengths),
        accepted=accepted,
        token=token,
        deviation=[] if costs is None else cut(np.array(costs, dtype=np.int64).view(np.float64).tolist(), lengths),
        parents=None if parents is None else cut(parents, lengths),
        paths=None if parents is None else cut(paths, accepted),
        sound=sound,
        fault=FINE if faults is None else worst(faults, lengths),
    )


def _followed(
    best: Sequence[Sequence[int]],
    finite: Callable[[int, int], bool],
    draft: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]] | None,
    lengths: Sequence[int],
) -> tuple[list[int], list[int], list[bool], list[list[int]]]:
    """Follow greedy drafts along the target's best tokens.

    Args:
        best: `[B][K + 1]`.
        finite: Returns whether the score of a row's best token at a position is finite.
        draft: `[B][K]`.
        parents: `[B][K]` for trees.
        lengths: B.

    Returns:
        Accepted, token, sound, and the numbers of the accepted draft tokens, of each row.
    """
    accepted, token, sound, paths = [], [], [], []
    for row, length in enumerate(lengths):
        path, last = [], -1
        for node in range(length):
            parent = node - 1 if parents is None else parents[row][node]
            if parent == last and draft[row][node] == best[row][last + 1]:
                path.append(node)
                last = node
        accepted.append(len(path))
        token.append(best[row][last + 1])
        sound.append(finite(row, last + 1))
        paths.append(path)
    return accepted, token, sound, paths


def answer_on_cpu(proposal: Proposal, p: Tensor, numbers: list[list[float]], faults: Tensor | None) -> Answered:
    """Verify a draft on a CPU by Algorithm 1, with l = 1: a line, or a tree of greedy decoding.

    Args:
        proposal: The draft `[B, K]`.
        p: `[B, K + 1, V]` float32, the target's adjusted distributions; its scores where it decodes greedily.
        numbers: `[B][K + 1]`, the random numbers; empty where the target decodes greedily.
        faults: `[B, K]`, a code for each position; None if nothing can be wrong with the draft.
    """
    parts = {"draft": proposal.tokens, "faults": faults, "parents": proposal.parents}
    lists: dict[str, Any] = {name: part.tolist() for name, part in parts.items() if part is not None}
    if numbers:
        made = accept_on_cpu(proposal.q, cut(lists["draft"], proposal.lengths), p, numbers)
        lists |= zip(("accepted", "token", "sound"), map(list, zip(*made, strict=True)), strict=True)
    else:
        values = p.numpy()
        best = lists["best"] = values.argmax(axis=-1).tolist()
        lists["finite"] = lambda row, at: math.isfinite(values.item(row, at, best[row][at]))
    return read(lists, proposal.lengths)


def cut(rows: Sequence[list[T]], lengths: Sequence[int]) -> list[list[T]]:
    """Return the first `lengths[b]` entries of each row b."""
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]
