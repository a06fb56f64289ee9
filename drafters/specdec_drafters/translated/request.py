"""The request to a drafter with its own tokenizer, in its own tokens."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from torch import Tensor

from specdec_core.interface import Branches, Candidates, DraftRequest, PluginError, Proposal
from specdec_core.interface.tree import TreeShape
from specdec_drafters.translated.shared import SharedTokens


class SharedTokenRequest:
    """Draws among shared tokens, by the request of the target (token-level intersection).

    The drafter's logits of shared tokens become logits of the target's tokens, minus infinity elsewhere. What the
    core draws and records is therefore a token of the target and its q; the drafter is told its own id of it.

    Args:
        outer: The request in the target's tokens.
        shared: The shared tokens.
        tokens: The committed tokens, in the drafter's ids.

    Attributes:
        tokens: The committed tokens of each sequence, in the drafter's ids.
        budget: The maximum number of tokens to draft for each sequence.
    """

    tree: TreeShape | None = None
    hidden_states: Mapping[int, Tensor] = MappingProxyType({})

    def __init__(self, outer: DraftRequest, shared: SharedTokens, tokens: Sequence[Sequence[int]]) -> None:
        self.tokens, self.budget = tokens, outer.budget
        self._outer = outer
        self._shared = shared
        self._forks: list[SharedTokenRequest] = []
        self._made: tuple[Proposal, Proposal] | None = None
        self._going: list[bool] | None = None

    @property
    def depth(self) -> tuple[int, ...]:
        """See `DraftRequest`."""
        return self.budget

    def branch(self, logits: Tensor) -> Branches:  # noqa: ARG002
        """Raise an error: drafts that are translated are lines."""
        raise PluginError("branch() was called although `tree` is None: a line was asked for; use sample().")

    def sample(self, logits: Tensor) -> Tensor:
        """See `DraftRequest.sample`."""
        self._check(logits, "logits")
        return self._shared.to_drafter(self._outer.sample(self._shared.logits(logits)))

    def sample_line(self, run: Callable[[Any], Any]) -> bool:  # noqa: ARG002
        """See `DraftRequest.sample_line`. Each token is translated, so that the line cannot be captured."""
        return False

    def draw(self, probabilities: Tensor) -> Tensor:
        """See `DraftRequest.draw`."""
        self._check(probabilities, "probabilities")
        return self._shared.to_drafter(self._outer.draw(self._shared.probabilities(probabilities)))

    def sample_candidates(self, rows: Sequence[Candidates | None]) -> list[int]:
        """See `DraftRequest.sample_candidates`."""
        self._check_rows(rows)
        carried = [None if row is None else self._shared.candidates(row) for row in rows]
        return self._shared.listed_to_drafter(self._outer.sample_candidates(carried))

    def extend(self, tokens: Sequence[Sequence[int]], q: Tensor | None) -> Sequence[bool]:
        """See `DraftRequest.extend`. A sequence ends before its first token that is not shared."""
        pairs = self._shared.pairs
        going = self._going or [True] * len(self.budget)
        rows = zip(tokens, going, strict=True)
        shared = [list(takewhile(pairs.__contains__, row if on else ())) for row, on in rows]
        wide = None if q is None else self._shared.probabilities(q)
        more = self._outer.extend([[pairs[token] for token in row] for row in shared], wide)
        kept = [len(row) == len(given) for row, given in zip(shared, tokens, strict=True)]
        self._going = [on and whole and left for on, whole, left in zip(going, kept, more, strict=True)]
        return self._going

    def wants_more(self) -> bool:
        """See `DraftRequest.wants_more`."""
        return self._outer.wants_more() if self._going is None else any(self._going)

    def proposal(self) -> Proposal:
        """See `DraftRequest.proposal`."""
        outer = self._outer.proposal()
        own = Proposal(self._shared.to_drafter(outer.tokens), outer.lengths, self._shared.of_drafter(outer.q))
        self._made = own, outer
        return own

    def fork(self, budget: Sequence[int]) -> SharedTokenRequest:
        """See `DraftRequest.fork`."""
        fork = SharedTokenRequest(self._outer.fork(budget), self._shared, self.tokens)
        self._forks.append(fork)
        return fork

    def translated(self, proposal: Proposal) -> Proposal:
        """Return the drafter's proposal in the target's tokens, with their q."""
        found = self._recorded(proposal)
        return self._shared.of_target(proposal) if found is None else found.shortened(proposal.lengths)

    def _recorded(self, proposal: Proposal) -> Proposal | None:
        """Return what the core recorded for a proposal that was drawn here or in a fork."""
        if self._made is not None:
            own, outer = self._made
            if proposal.tokens is own.tokens and proposal.q is own.q:
                return outer
        return next((found for fork in self._forks if (found := fork._recorded(proposal)) is not None), None)

    def _check(self, values: Tensor, what: str) -> None:
        expected = (len(self.budget), self._shared.drafter_size)
        if not isinstance(values, Tensor) or tuple(values.shape) != expected:
            shape = tuple(getattr(values, "shape", ()))
            raise PluginError(
                f"{what} of shape {shape} were given; [B, W] is {expected} here, for the drafter's own tokens."
            )

    def _check_rows(self, rows: Sequence[Candidates | None]) -> None:
        last = self._shared.drafter_size - 1
        for row in rows:
            if row is not None and not (len(row.ids) and 0 <= row.ids.min() <= row.ids.max() <= last):
                raise PluginError(
                    f"ids of candidates must be within the drafter's own vocabulary (0 to {last}), at least one; "
                    f"given {reprlib.repr(row.ids.tolist())}."
                )
