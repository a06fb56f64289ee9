"""The core's half of drafting: it draws the tokens and keeps the q each was drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from specdec_core.border import OverlayRow, Proposal
from specdec_core.decoding.recording import DraftRecord
from specdec_core.errors import PluginError
from specdec_core.inference import inference_only
from specdec_core.overlay import RowAt, best, row_at, write_log_weights
from specdec_core.randomness import RowStreams, draw
from specdec_core.sampling import Standardiser, top

Watcher: TypeAlias = Callable[[Sequence[float]], Sequence[bool]]


class DraftRecorder:
    """Draws draft tokens for a batch, step after step, into buffers that are reused.

    Args:
        standardiser: The settings for drafts; may differ from the target's (section 6), still lossless.
        streams: The rows' random numbers.
        batch_size: B.
        vocab_size: V.
        max_gamma: The most tokens of a step.
        device: Where the proposal is wanted.
    """

    def __init__(
        self,
        standardiser: Standardiser,
        streams: RowStreams,
        batch_size: int,
        vocab_size: int,
        max_gamma: int,
        device: torch.device | str,
    ) -> None:
        self._standardise = standardiser
        self._streams = streams
        self._shape = (batch_size, max_gamma, vocab_size)
        self._device = torch.device(device)
        self._record = DraftRecord(*self._shape, self._device)
        self._forks: list[DraftRecorder] = []
        self.start((), (0,) * batch_size)

    def start(
        self, prefixes: Sequence[Sequence[int]], budget: tuple[int, ...], watcher: Watcher | None = None
    ) -> None:
        """Forget the last step's draft and begin another.

        Args:
            prefixes: The committed tokens of each row.
            budget: The most tokens of each row.
            watcher: Says which rows draft on, given the confidence in the token each has just drafted.
        """
        self._prefixes = prefixes
        self._budget = budget
        self._left = list(budget)
        self._lengths = [0] * len(budget)
        self._watcher = watcher
        self._numbers: list[list[float]] | None = None
        self._uniforms: Tensor | None = None
        self._made: Proposal | None = None
        self._drawn_directly = False
        self._forked = 0
        self._record.clear()

    @inference_only
    def sample(self, logits: Tensor) -> Tensor:
        """Standardise, draw and record; see `DraftRequest.sample`."""
        self._check(logits, "logits")
        given = logits.to(self._device)
        prefixes = self._current_prefixes() if self._standardise.needs_prefix else None
        if self._standardise.argmax:
            # q is one-hot on the drawn token: a point mass says so without V numbers a token.
            scores = self._standardise.scores(given, prefixes)
            token = top(scores)
            self._record.add_certain(token)
            self._advance(None if self._watcher is None else _at(torch.softmax(scores, dim=-1), token))
        else:
            q = self._standardise(given, prefixes, out=self._record.next_q())
            token = self._draw(q)
        return token.to(logits.device)

    @inference_only
    def draw(self, probabilities: Tensor) -> Tensor:
        """Draw from a finished distribution and record it; see `DraftRequest.draw`."""
        self._check(probabilities, "probabilities")
        self._drawn_directly = True
        token = self._draw(self._record.next_q().copy_(probabilities))
        return token.to(probabilities.device)

    def sample_overlay(self, rows: Sequence[OverlayRow | None]) -> list[int]:
        """Standardise, draw and record without writing the rows out; see `DraftRequest.sample_overlay`."""
        self._check_rows(rows)
        if not self._standardise.temperature_only:
            return self._sample_written_out(rows)
        if self._standardise.argmax:
            return self._take_best(rows)
        place, numbers = len(self._record), self._take_numbers()
        temperature = self._standardise.settings.temperature
        tokens, confidence = [0] * len(rows), [1.0] * len(rows)
        drawn_from: list[RowAt | None] = [None] * len(rows)
        for index, row in enumerate(rows):
            if row is not None and self._left[index]:
                at = drawn_from[index] = row_at(row, temperature)
                tokens[index], confidence[index] = at.draw(numbers[index][place])
        self._record.add_overlay(tokens, drawn_from)
        self._advance(confidence)
        return list(tokens)

    def _take_best(self, rows: Sequence[OverlayRow | None]) -> list[int]:
        tokens, confidence = [0] * len(rows), [1.0] * len(rows)
        for index, row in enumerate(rows):
            if row is not None and self._left[index]:
                tokens[index] = best(row)
                if self._watcher is not None:
                    confidence[index] = row_at(row, 1.0).density(tokens[index])
        self._record.add_certain(tokens)
        self._advance(confidence)
        return list(tokens)

    def _sample_written_out(self, rows: Sequence[OverlayRow | None]) -> list[int]:
        wanted = [left > 0 for left in self._left]
        logits = np.zeros((self._shape[0], self._shape[2]), dtype=np.float32)
        for out, row in zip(logits, rows, strict=True):
            if row is not None:
                write_log_weights(row, out)
        tokens = self.sample(torch.from_numpy(logits)).tolist()
        return [token if more else 0 for token, more in zip(tokens, wanted, strict=True)]

    @inference_only
    def take(self, tokens: Sequence[Sequence[int]], q: Tensor | None) -> list[bool]:
        """Record tokens that an inner loop drew; see `DraftRequest.take`."""
        if len(self._record):
            raise PluginError("tokens were taken behind others that were drawn here: fork the request for them.")
        kept = [list(row[:left]) for row, left in zip(tokens, self._left, strict=True)]
        left = [most - len(row) for most, row in zip(self._left, kept, strict=True)]
        if self._watcher is not None:
            for place in range(max(map(len, kept))):
                on = self._watcher(_taken_confidence(kept, q, place))
                for row, more in enumerate(on):
                    if not more and place < len(kept[row]):
                        del kept[row][place + 1 :]
                        left[row] = 0
        self._record.take(kept, q)
        self._lengths = [n + len(row) for n, row in zip(self._lengths, kept, strict=True)]
        self._left = left
        return [n > 0 for n in left]

    def wants_more(self) -> bool:
        """Whether any row may still take a token."""
        return any(self._left)

    @inference_only
    def proposal(self) -> Proposal:
        """Return all that was drawn since `start`; its q is a view on buffers, valid until the next step."""
        self._made = Proposal(self._record.tokens(), tuple(self._lengths), self._record.q())
        return self._made

    def vouches_for(self, proposal: Proposal) -> bool:
        """Whether these tokens and this q were recorded from logits, here or in a fork of this step.

        Such a proposal needs no further check.
        """
        made = self._made
        if made is not None and proposal.tokens is made.tokens and proposal.q is made.q:
            return not self._drawn_directly
        return any(fork.vouches_for(proposal) for fork in self._forks[: self._forked])

    def fork(self, budget: tuple[int, ...]) -> DraftRecorder:
        """Return a recorder with a record and a budget of its own; see `DraftRequest.fork`.

        What was drawn here before is no part of it. It is this one's until the next `start`.
        """
        legal = len(budget) == len(self._budget) and all(
            0 <= own <= most for own, most in zip(budget, self._budget, strict=True)
        )
        if not legal:
            raise PluginError(
                f"a request was forked with the budget {list(budget)}; {len(self._budget)} numbers are wanted, "
                f"from 0 to the request's own: {list(self._budget)}."
            )
        if self._forked == len(self._forks):
            self._forks.append(DraftRecorder(self._standardise, self._streams, *self._sizes(), self._device))
        fork = self._forks[self._forked]
        self._forked += 1
        fork.start(self._prefixes, tuple(budget), self._watcher)
        return fork

    def _sizes(self) -> tuple[int, int, int]:
        batch, gamma, vocab = self._shape
        return batch, vocab, gamma

    def _draw(self, q: Tensor) -> Tensor:
        if self._uniforms is None:
            self._uniforms = torch.tensor(self._take_numbers(), dtype=torch.float64).to(
                self._device, non_blocking=True
            )
        token = draw(q, self._uniforms[:, len(self._record)])
        self._record.add_written(token)
        self._advance(None if self._watcher is None else _at(q, token))
        return token

    def _advance(self, confidence: Tensor | Sequence[float] | None) -> None:
        """Count the token that every row has just taken, and ask the watcher who drafts on."""
        took = [left > 0 for left in self._left]
        for index, left in enumerate(self._left):
            if left:
                self._lengths[index] += 1
                self._left[index] = left - 1
        if self._watcher is not None and confidence is not None:
            values = confidence.tolist() if isinstance(confidence, Tensor) else confidence
            on = self._watcher([value if new else math.nan for value, new in zip(values, took, strict=True)])
            self._left = [left if more else 0 for left, more in zip(self._left, on, strict=True)]

    def _take_numbers(self) -> list[list[float]]:
        """Return the step's random numbers of each row."""
        if self._numbers is None:
            # Each row uses up as many as its own budget, so that its tokens do not depend on its neighbours.
            self._numbers = self._streams.numbers(self._budget, max(self._budget))
        return self._numbers

    def _current_prefixes(self) -> list[list[int]]:
        return [list(row) + new for row, new in zip(self._prefixes, self._record.rows(), strict=True)]

    def _check(self, values: Tensor, what: str) -> None:
        self._check_budget()
        expected = (self._shape[0], self._shape[2])
        if tuple(values.shape) != expected:
            raise PluginError(f"{what} of shape {tuple(values.shape)} were given; [B, V] is {expected} here.")

    def _check_rows(self, rows: Sequence[OverlayRow | None]) -> None:
        self._check_budget()
        if len(rows) != len(self._left):
            raise PluginError(f"{len(rows)} rows were given; the batch has {len(self._left)}.")
        for index, row in enumerate(rows):
            if row is None:
                if self._left[index]:
                    raise PluginError(
                        f"None was given for row {index}, which may still take {self._left[index]} tokens."
                    )
            elif len(row.background.log_weights) != self._shape[2]:
                raise PluginError(
                    f"row {index} has a background of {len(row.background.log_weights)} weights; "
                    f"V is {self._shape[2]} here."
                )

    def _check_budget(self) -> None:
        if not any(self._left):
            raise PluginError("the drafter drew a token although wants_more() was False: its budget was spent.")
        if self._record.taken:
            raise PluginError("a token was drawn behind others that an inner loop drew: fork the request for it.")


def _at(probabilities: Tensor, token: Tensor) -> Tensor:
    """Return the probability `[B]` of each row's token."""
    return probabilities.gather(1, token[:, None])[:, 0]


def _taken_confidence(rows: Sequence[Sequence[int]], q: Tensor | None, place: int) -> list[float]:
    """Return q of the tokens at a place; 1 where they were certain, and NaN in rows that have none there."""
    return [
        math.nan if place >= len(row) else 1.0 if q is None else float(q[index, place, row[place]])
        for index, row in enumerate(rows)
    ]
