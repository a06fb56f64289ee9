"""The expected counts of decoding with a drafter, given each text.

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

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

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

    @property
    def first_draft_calls(self) -> Floats:
        """`[N]`, the part of `draft_calls` that belongs to the first steps."""
        length = self.first_length @ np.arange(self.first_length.shape[1])
        return np.maximum(length, 1 - self.first_asked[:, 0])


def expected_counts(texts: Sequence[DraftedText], gamma: int) -> ExpectedCounts:
    """Return the expected counts of decoding texts with a fixed gamma, each in a separate batch.

    Args:
        texts: What is known of drafts along each text; their K is at least gamma.
        gamma: Tokens asked for in every step, at least 0.

    Raises:
        ValueError: `gamma` is out of range, or a text is empty.
    """
    _check(texts, gamma)
    parts = [_counts_of(part, gamma) for part in _parts(texts, gamma)]
    names = [field.name for field in fields(ExpectedCounts)]
    return ExpectedCounts(**{name: np.concatenate([getattr(one, name) for one in parts]) for name in names})


def _check(texts: Sequence[DraftedText], gamma: int) -> None:
    if not texts:
        raise ValueError("no text was given")
    most = min(text.accept.shape[1] for text in texts)
    if not 0 <= gamma <= most:
        raise ValueError(f"gamma must be from 0 to {most}, the longest draft that is known; given {gamma!r}")
    for number, text in enumerate(texts):
        if not len(text.accept):
            raise ValueError(f"text {number} has no tokens")


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
