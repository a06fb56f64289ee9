"""One step of beam search, as a pure function of the best continuations of each running beam.

The arithmetic, in float32, is that of `generate(num_beams=w)` in transformers, so that sequences and scores are
the same. Only the best continuations of each beam are looked at: no others can be among the best of all beams.

References:
    transformers, `GenerationMixin._beam_search` (version 5.23), from which the rules for finished hypotheses, the
    length penalty and early stopping are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec_core.decoding.rows import FinishReason

if TYPE_CHECKING:
    from torch import Tensor

Scores: TypeAlias = NDArray[np.float32]
Ends: TypeAlias = Callable[[Sequence[int], int], FinishReason | None]
"""Returns why a beam ends with a token, given its new tokens and that one; None if it goes on."""

_EXCLUDED = np.float32(-1e9)
"""Added to scores that do not take part, and the score of beams that do not exist yet."""


@dataclass(frozen=True)
class BeamRules:
    """The rules of a beam search: its width, its lengths and its end.

    Attributes:
        beams: w, the number of beams.
        candidates: Number of continuations looked at in a step: enough that w remain if the others end.
        max_new_tokens: Number of tokens after which every beam ends.
        length_penalty: Exponent of the length by which a finished hypothesis' log probability is divided.
        early_stopping: True ends with w finished hypotheses; False where no running beam is likely to become
            better than they are; "never" where none can.
        bounded: Whether no continuation scores above its beam. A logits processor that adds to log probabilities
            may break that.
    """

    beams: int
    candidates: int
    max_new_tokens: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    bounded: bool = True

    @staticmethod
    def count_candidates(beams: int, eos_ids: int) -> int:
        """Return the number of continuations to look at, given w and the number of end-of-sequence ids."""
        return max(2, 1 + eos_ids) * beams


@dataclass(frozen=True)
class Continuations:
    """The best continuations of one text, the best first.

    Attributes:
        log_probs: `[C]` float32, their log probabilities after the logits processors.
        tokens: `[C]` int64.
        hidden: `[D]`, the hidden state that they were predicted from, if those are kept.
    """

    log_probs: Scores
    tokens: NDArray[np.int64]
    hidden: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Hypothesis:
    """A finished beam.

    Attributes:
        tokens: Its new tokens, with the one that ended it.
        score: Its log probability divided by its length to the power of the length penalty.
        reason: Why it ended.
    """

    tokens: tuple[int, ...]
    score: float
    reason: FinishReason


@dataclass(frozen=True)
class BeamState:
    """A beam search after some steps.

    Attributes:
        beams: The new tokens of each running beam, the best beam first.
        scores: `[w]` float32, the log probability of each.
        finished: The best finished hypotheses; None where a slot is free.
        finished_scores: `[w]` float32, their scores.
        improvable: Whether a running beam may still become better than a finished one.
        done: Whether the search has ended.
    """

    beams: tuple[tuple[int, ...], ...]
    scores: Scores
    finished: tuple[Hypothesis | None, ...]
    finished_scores: Scores
    improvable: bool = True
    done: bool = False

    @classmethod
    def start(cls, beams: int) -> BeamState:
        """Return the state before the first step: all beams are empty, and all but the first excluded."""
        scores = np.full(beams, _EXCLUDED)
        scores[0] = 0
        return cls(((),) * beams, scores, (None,) * beams, np.full(beams, _EXCLUDED))


@dataclass(frozen=True)
class Advance:
    """A step of beam search.

    Attributes:
        state: The state after it.
        parents: For each running beam, the number of the beam that it continues.
    """

    state: BeamState
    parents: tuple[int, ...]


def advance(
    state: BeamState, known: Sequence[Continuations | None], rules: BeamRules, ends: Ends
) -> Advance | None:
    """Take one step of beam search.

    Args:
        state: The search so far.
        known: The best `rules.candidates` continuations of each running beam (all there are, if fewer); None for
            one whose continuations are not known.
        rules: What to keep.
        ends: Tells which continuations end.

    Returns:
        The step; None if a beam that is not known may have a part in it. It has none where w continuations of the
        others are better than that beam itself, if no continuation is better than its beam (`rules.bounded`).
    """
    found = [(beam, one) for beam, one in enumerate(known) if one is not None]
    if not found or (len(found) < len(known) and not rules.bounded):
        return None
    every = np.concatenate([state.scores[beam] + one.log_probs for beam, one in found])
    order = _best(every, rules.candidates)
    scores = every[order]
    beams = np.repeat([beam for beam, _ in found], [len(one.tokens) for _, one in found])[order].tolist()
    tokens = np.concatenate([one.tokens for _, one in found])[order].tolist()
    reasons = [ends(state.beams[beam], token) for beam, token in zip(beams, tokens, strict=True)]
    ended = np.array([reason is not None for reason in reasons])

    running = scores + ended.astype(np.float32) * _EXCLUDED
    kept = _best(running, rules.beams)
    length = len(state.beams[0]) + 1
    if len(found) < len(known):
        bound = max(state.scores[beam] for beam, one in enumerate(known) if one is None)
        final = length == rules.max_new_tokens
        worst = rules.beams - 1 if final else max(rules.beams - 1, *kept)
        certain = len(kept) == rules.beams and (final or not ended[kept].any())
        if not certain or not scores[worst] > bound:
            return None
    texts = [(*state.beams[beam], token) for beam, token in zip(beams, tokens, strict=True)]
    finished, finished_scores = _finish(state, rules, texts, scores, reasons, length)
    improvable = state.improvable and _may_improve(rules, length, running[kept[0]], finished, finished_scores)
    full = None not in finished
    after = BeamState(
        beams=tuple(texts[one] for one in kept),
        scores=running[kept],
        finished=finished,
        finished_scores=finished_scores,
        improvable=improvable,
        done=not improvable or (full and rules.early_stopping is True) or bool(ended.all()),
    )
    return Advance(after, tuple(beams[one] for one in kept))


def _finish(
    state: BeamState,
    rules: BeamRules,
    texts: Sequence[tuple[int, ...]],
    scores: Scores,
    reasons: Sequence[FinishReason | None],
    length: int,
) -> tuple[tuple[Hypothesis | None, ...], Scores]:
    """Return the best w of the finished hypotheses and of those of the best w continuations that end now."""
    normalized = (scores / np.float32(length**rules.length_penalty)).astype(np.float32)
    closed = None not in state.finished and rules.early_stopping is True
    out = np.array([reason is None or index >= rules.beams for index, reason in enumerate(reasons)])
    for excluded in (closed, not state.improvable, out):
        normalized = normalized + np.float32(excluded) * _EXCLUDED
    new = [
        None if left_out or reason is None else Hypothesis(text, float(score), reason)
        for left_out, reason, text, score in zip(out, reasons, texts, normalized, strict=True)
    ]
    merged = np.concatenate([state.finished_scores, normalized])
    order = _best(merged, rules.beams)
    either = [*state.finished, *new]
    return tuple(either[index] for index in order), merged[order]


def _may_improve(
    rules: BeamRules, length: int, best: np.float32, finished: Sequence[Hypothesis | None], scores: Scores
) -> bool:
    """Return whether the best running beam may become better than the worst finished hypothesis."""
    if rules.early_stopping == "never" and rules.length_penalty > 0:
        length = rules.max_new_tokens
    possible = best / np.float32(length**rules.length_penalty)
    return bool(possible > (_EXCLUDED if None in finished else scores.min()))


def _best(scores: Scores, count: int) -> NDArray[np.intp]:
    """Return the indices of the largest scores, the largest first; of equal ones, the first comes first."""
    return np.argsort(-scores, kind="stable")[:count]
