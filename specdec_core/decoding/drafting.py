"""The core's half of drafting: it draws the tokens and keeps the q each was drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from specdec_core.border import Dense, PointMass, Proposal
from specdec_core.errors import PluginError
from specdec_core.inference import inference_only
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
        self._vocab = vocab_size
        self._device = torch.device(device)
        self._q: Tensor | None = None
        self._shape = (batch_size, max_gamma, vocab_size)
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
        self._numbers: Tensor | None = None
        self._lengths = [0] * len(budget)
        self._watcher = watcher
        self._drawn: list[Tensor] = []
        self._made: Proposal | None = None
        self._drawn_directly = False

    @inference_only
    def sample(self, logits: Tensor) -> Tensor:
        """Standardise, draw and record; see `DraftRequest.sample`."""
        self._check(logits, "logits")
        given = logits.to(self._device)
        prefixes = self._current_prefixes() if self._standardise.needs_prefix else None
        if self._dense:
            q = self._standardise(given, prefixes, out=self._slot())
            token = draw(q, self._uniforms())
            self._record(token, None if self._watcher is None else _at(q, token))
        else:
            # q is one-hot on the drawn token: a point mass says so without V numbers a token.
            scores = self._standardise.scores(given, prefixes)
            token = top(scores)
            self._record(token, None if self._watcher is None else _at(torch.softmax(scores, dim=-1), token))
        return token.to(logits.device)

    @inference_only
    def draw(self, probabilities: Tensor) -> Tensor:
        """Draw from a finished distribution and record it; see `DraftRequest.draw`."""
        self._check(probabilities, "probabilities")
        self._spread_point_masses()
        self._drawn_directly = True
        q = self._slot().copy_(probabilities)
        token = draw(q, self._uniforms())
        self._record(token, None if self._watcher is None else _at(q, token))
        return token.to(probabilities.device)

    def wants_more(self) -> bool:
        """Whether any row may still take a token."""
        return any(self._left)

    def proposal(self) -> Proposal:
        """Return all that was drawn since `start`; its q is a view on a buffer, valid until the next step."""
        q = Dense(self._q[:, : len(self._drawn)]) if self._dense and self._q is not None else PointMass()
        self._made = Proposal(self._tokens(), tuple(self._lengths), q)
        return self._made

    def vouches_for(self, proposal: Proposal) -> bool:
        """Whether these tokens and this q were recorded from logits here, so that they need no further check."""
        made = self._made
        own = made is not None and proposal.tokens is made.tokens and proposal.q is made.q
        return own and not self._drawn_directly

    def _tokens(self) -> Tensor:
        if not self._drawn:
            return torch.zeros(len(self._budget), 0, dtype=torch.long, device=self._device)
        return torch.stack(self._drawn, dim=1)

    @property
    def _dense(self) -> bool:
        return self._drawn_directly or not self._standardise.argmax

    def _slot(self) -> Tensor:
        if self._q is None:
            self._q = torch.zeros(self._shape, device=self._device)
        return self._q[:, len(self._drawn)]

    def _spread_point_masses(self) -> None:
        """Write the one-hot q of tokens that were sampled by argmax before, so that all have one form."""
        if not self._dense:
            self._slot()
            assert self._q is not None
            self._q[:, : len(self._drawn)].zero_().scatter_(2, self._tokens()[..., None], 1.0)

    def _record(self, token: Tensor, confidence: Tensor | None) -> None:
        self._drawn.append(token)
        self._lengths = [n + (left > 0) for n, left in zip(self._lengths, self._left, strict=True)]
        self._left = [max(left - 1, 0) for left in self._left]
        if self._watcher is not None and confidence is not None:
            on = self._watcher(confidence.tolist())
            self._left = [left if more else 0 for left, more in zip(self._left, on, strict=True)]

    def _uniforms(self) -> Tensor:
        if self._numbers is None:
            # Each row uses up as many as its own budget, so that its tokens do not depend on its neighbours.
            self._numbers = self._streams.uniforms(self._budget, max(self._budget))
        return self._numbers[:, len(self._drawn)]

    def _current_prefixes(self) -> list[list[int]]:
        drafted = self._tokens().tolist()
        return [list(row) + new for row, new in zip(self._prefixes, drafted, strict=True)]

    def _check(self, values: Tensor, what: str) -> None:
        if not self.wants_more():
            raise PluginError("the drafter drew a token although wants_more() was False: its budget was spent.")
        expected = (self._shape[0], self._vocab)
        if tuple(values.shape) != expected:
            raise PluginError(f"{what} of shape {tuple(values.shape)} were given; [B, V] is {expected} here.")


def _at(probabilities: Tensor, token: Tensor) -> Tensor:
    """Return the probability `[B]` of each row's token."""
    return probabilities.gather(1, token[:, None])[:, 0]
