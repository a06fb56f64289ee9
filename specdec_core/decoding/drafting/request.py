"""The core's half of drafting: draws draft tokens and records the q that each came from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from specdec_core.decoding.drafting.captured_line import CapturedLine
from specdec_core.decoding.drafting.confidence import KeepDrafting, confidence_in, cut_by_confidence
from specdec_core.decoding.drafting.draft_record import DraftRecord
from specdec_core.decoding.drafting.request_checks import (
    check_candidate_rows,
    check_extension,
    check_fork,
    check_values,
)
from specdec_core.decoding.drafting.sampler import DraftSampler
from specdec_core.decoding.drafting.tree_draft import LevelDraft, TreeDraft
from specdec_core.decoding.drafting.validation import copied
from specdec_core.interface import Branches, Candidates, Dense, PluginError, PointMass, Proposal
from specdec_core.interface.proposal import ProposalOrigin
from specdec_core.interface.tree import TreeShape
from specdec_core.models import inference_only
from specdec_core.models.device import moved, uploaded
from specdec_core.models.fast.static_step import Line
from specdec_core.sampling.candidates import (
    TemperedCandidates,
    best_candidate,
    tempered,
    write_log_weights,
)
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import PREFIX_READERS, LogitsToProbs, argmax

Numbers: TypeAlias = list[list[float]]
"""Random numbers of each sequence."""
NewTree: TypeAlias = Callable[
    [TreeShape, Sequence[int], LogitsToProbs, DraftRecord, Sequence[Sequence[int]], Callable[[], Numbers]],
    LevelDraft,
]
"""Makes a step's draft of a shape, given what `TreeDraft` is given."""


class DraftRecorder:
    """The `DraftRequest` of every step of a batch; its buffers are reused from step to step.

    Args:
        to_probs: The sampling settings for drafts; they may differ from the target's (section 6), still lossless.
        generators: The sequences' random generators.
        batch_size: B.
        vocab_size: V.
        max_gamma: Maximum number of draft tokens in a step.
        device: Device of the proposal.
        sampler: Draws the tokens.
        new_tree: Makes a step's draft where it is a tree.
        is_fork: Whether it is a fork of another, so that its draft may become part of something else.

    Attributes:
        faults: What `check_recorded` says of a line of a captured function; None if nothing can be wrong.
    """

    def __init__(
        self,
        to_probs: LogitsToProbs,
        generators: RowGenerators,
        batch_size: int,
        vocab_size: int,
        max_gamma: int,
        device: torch.device | str,
        *,
        sampler: DraftSampler | None = None,
        new_tree: NewTree = TreeDraft,
        is_fork: bool = False,
    ) -> None:
        self._to_probs = to_probs
        self._generators = generators
        self._shape = (batch_size, max_gamma, vocab_size)
        self._device = torch.device(device)
        self._record = DraftRecord(*self._shape, self._device)
        self._forks: list[DraftRecorder] = []
        self._sampler = sampler or DraftSampler()
        self._new_tree = new_tree
        self._is_fork = is_fork
        self.start((), (0,) * batch_size)

    def start(
        self,
        tokens: Sequence[Sequence[int]],
        budget: tuple[int, ...],
        hidden_states: Mapping[int, Tensor] | None = None,
        keep_drafting: KeepDrafting | None = None,
        tree: TreeShape | None = None,
        depth: tuple[int, ...] | None = None,
        step: object = None,
    ) -> None:
        """Discard the last step's draft and start another.

        Args:
            tokens: The committed tokens of each sequence.
            budget: The maximum number of draft tokens of each sequence.
            hidden_states: Hidden states of the target; see `DraftRequest`.
            keep_drafting: Called after each draft token; None to draft until the budget is spent.
            tree: The shape of the draft, which is then not cut short; None for a line.
            depth: The maximum length of a path of each sequence; the budget for a line.
            step: Identifies the step; that of the request for a fork of it.
        """
        self._tokens = tokens
        self._budget = budget
        self._hidden_states = hidden_states or {}
        self._keep_drafting = keep_drafting
        self._left = list(budget)
        self._lengths = [0] * len(budget)
        self._numbers: Numbers | None = None
        self._uniforms: Tensor | None = None
        self._step = step or object()
        self._drawn_directly = False
        self._in_line = False
        self._uncaptured: str | None = None
        self.faults: Tensor | None = None
        self._forked = 0
        self._record.clear()
        self._sampler.start(tokens, budget)
        self._shape_asked, self._depth = tree, budget if depth is None else depth
        self._tree: LevelDraft | None = None
        if tree is not None:
            self._tree = self._new_tree(tree, budget, self._to_probs, self._record, tokens, self._take_numbers)

    @property
    def tokens(self) -> Sequence[Sequence[int]]:
        """See `DraftRequest`."""
        return self._tokens

    @property
    def budget(self) -> tuple[int, ...]:
        """See `DraftRequest`."""
        return self._budget

    @property
    def hidden_states(self) -> Mapping[int, Tensor]:
        """See `DraftRequest`."""
        return self._hidden_states

    @property
    def tree(self) -> TreeShape | None:
        """See `DraftRequest`."""
        return self._shape_asked

    @property
    def depth(self) -> tuple[int, ...]:
        """See `DraftRequest`."""
        return self._depth

    @inference_only
    def branch(self, logits: Tensor) -> Branches:
        """See `DraftRequest.branch`."""
        if self._tree is None:
            raise PluginError("branch() was called although `tree` is None: a line was asked for; use sample().")
        if not self._tree.wants_more():
            raise PluginError("branch() was called although wants_more() was False: the tree is drafted.")
        check_values(logits, "logits", "[B, P, V]", (self._shape[0], self._tree.width, self._shape[2]))
        drawn = self._tree.branch(logits if logits.device.type == "cpu" else moved(logits, self._device))
        # Copied, since the drafter may change what it gets.
        tokens, parents = (moved(part.clone(), logits.device) for part in (drawn.tokens, drawn.parents))
        return Branches(tokens, parents, drawn.lengths)

    @inference_only
    def sample(self, logits: Tensor) -> Tensor:
        """See `DraftRequest.sample`."""
        self._check_budget()
        check_values(logits, "logits", "[B, V]", (self._shape[0], self._shape[2]))
        given = moved(logits, self._device)
        prefixes = self._current_prefixes() if self._to_probs.needs_prefix else None
        if self._to_probs.greedy:
            # q is one-hot on the drawn token: a point mass says so without V numbers a token.
            scores = self._to_probs.scores(given, prefixes)
            token = argmax(scores)
            self._record.add_certain(token)
            self._advance(None if self._keep_drafting is None else confidence_in(token, scores.softmax(dim=-1)))
            token = self._sampler.all_told(token, len(self._record) - 1)
        else:
            q = self._to_probs(given, prefixes, out=self._record.next_q())
            token = self._draw(q)
        return moved(token, logits.device)

    @inference_only
    def sample_line(self, run: Callable[[Line], Sequence[Tensor] | None]) -> bool:
        """See `DraftRequest.sample_line`."""
        begun = len(self._record) or self._record.extended or self._tree is not None
        if begun or self._device.type != "cuda" or type(self._sampler) is not DraftSampler:
            return False
        self._uncaptured = self._why_uncaptured()
        if self._uncaptured is not None:
            return False
        numbers = [[] for _ in self._budget] if self._to_probs.greedy else self._take_numbers()
        made = run(Line(CapturedLine(self._to_probs.settings), self._budget, numbers, self._device))
        if made is None:
            return False
        width = max(self._budget)
        tokens, *sampled = made
        if sampled:
            self.faults = sampled[1][:, :width]
        self._record.add_line(tokens[:, :width], Dense(sampled[0][:, :width]) if sampled else PointMass())
        self._lengths, self._left, self._in_line = list(self._budget), [0] * len(self._budget), True
        return True

    @property
    def uncaptured(self) -> str | None:
        """Why this draft, or that of a fork, is captured pass by pass and not as a whole; None if it is not."""
        found = (self._uncaptured, *(fork._uncaptured for fork in self._forks[: self._forked]))
        return next(filter(None, found), None)

    def _why_uncaptured(self) -> str | None:
        if self._is_fork:
            return "the draft is a part of another drafter's"
        if self._keep_drafting is not None:
            return "the gamma controller reads the confidence of each draft token"
        return None if self._to_probs.settings_only else PREFIX_READERS

    @inference_only
    def draw(self, probabilities: Tensor) -> Tensor:
        """See `DraftRequest.draw`."""
        self._check_budget()
        check_values(probabilities, "probabilities", "[B, V]", (self._shape[0], self._shape[2]))
        self._drawn_directly = True
        q = self._record.next_q().copy_(probabilities)
        token = self._draw(self._to_probs.legal_only_(q, self._current_prefixes))
        return moved(token, probabilities.device)

    def sample_candidates(self, rows: Sequence[Candidates | None]) -> list[int]:
        """See `DraftRequest.sample_candidates`."""
        self._check_budget()
        check_candidate_rows(rows, self._left, self._shape[2])
        if not self._to_probs.temperature_only:
            return self._sample_dense(rows)
        if self._to_probs.greedy:
            return self._draw_best(rows)
        position, numbers = len(self._record), self._take_numbers()
        temperature = self._to_probs.settings.temperature
        tokens, confidence = [0] * len(rows), [1.0] * len(rows)
        drawn_from: list[TemperedCandidates | None] = [None] * len(rows)
        for index, row in enumerate(rows):
            if row is not None and self._left[index]:
                at = drawn_from[index] = tempered(row, temperature)
                tokens[index], confidence[index] = self._sampler.draw_candidate(
                    at, numbers[index][position], index, position
                )
        self._record.add_candidates(tokens, drawn_from)
        self._advance(confidence)
        return list(tokens)

    def _draw_best(self, rows: Sequence[Candidates | None]) -> list[int]:
        tokens, confidence = [0] * len(rows), [1.0] * len(rows)
        for index, row in enumerate(rows):
            if row is not None and self._left[index]:
                tokens[index] = best_candidate(row)
                if self._keep_drafting is not None:
                    confidence[index] = tempered(row, 1.0).probability(tokens[index])
        position, took = len(self._record), [left > 0 for left in self._left]
        self._record.add_certain(tokens)
        self._advance(confidence)
        told = (self._sampler.told(token, index, position) for index, token in enumerate(tokens))
        return [own if more else token for own, token, more in zip(told, tokens, took, strict=True)]

    def _sample_dense(self, rows: Sequence[Candidates | None]) -> list[int]:
        wanted = [left > 0 for left in self._left]
        logits = np.zeros((self._shape[0], self._shape[2]), dtype=np.float32)
        for out, row in zip(logits, rows, strict=True):
            if row is not None:
                write_log_weights(row, out)
        tokens = self.sample(torch.from_numpy(logits)).tolist()
        return [token if more else 0 for token, more in zip(tokens, wanted, strict=True)]

    @inference_only
    def extend(
        self, tokens: Sequence[Sequence[int]], q: Tensor | None, *, drawn_by_core: bool = False
    ) -> list[bool]:
        """See `DraftRequest.extend`.

        Args:
            tokens: The next tokens of each sequence.
            q: The distribution of each.
            drawn_by_core: Whether a loop of the core drew them, so that nothing needs to be checked.
        """
        if self._tree is not None:
            raise PluginError("extend() was called, but `tree` asks for a tree; fork the request for a line.")
        if len(self._record):
            raise PluginError(
                "extend() was called after a token was drawn from this request; fork the request for one of them."
            )
        if not drawn_by_core:
            tokens = check_extension(tokens, q, self._shape[0], self._shape[2])
            self._drawn_directly |= q is not None  # so that its sums are checked
        kept = [list(row[:left]) for row, left in zip(tokens, self._left, strict=True)]
        left = [most - len(row) for most, row in zip(self._left, kept, strict=True)]
        if self._keep_drafting is not None:
            cut_by_confidence(kept, left, q, self._keep_drafting)
        self._record.extend(kept, q)
        self._lengths = [n + len(row) for n, row in zip(self._lengths, kept, strict=True)]
        self._left = left
        return [n > 0 for n in left]

    def wants_more(self) -> bool:
        """See `DraftRequest.wants_more`."""
        return any(self._left) if self._tree is None else self._tree.wants_more()

    @inference_only
    def proposal(self) -> Proposal:
        """Return everything drawn since `start`, as views of buffers that are valid until the next step."""
        if self._tree is not None:
            proposal = self._tree.proposal()
            if proposal.tokens.device.type != self._device.type:
                proposal = copied(proposal, self._device)
        else:
            proposal = Proposal(self._record.tokens(), tuple(self._lengths), self._record.q())
        step = None if self._drawn_directly else self._step
        return proposal.made_by_core(ProposalOrigin(step=step, captured=self._in_line))

    def made(self, proposal: object) -> bool:
        """Return whether a proposal was drawn from logits in this step, by this request or a fork of it.

        Its ids are then legal, and its q sums to 1.
        """
        return isinstance(proposal, Proposal) and proposal.origin.step is self._step

    def drew(self, proposal: Proposal) -> bool:
        """Return whether the tokens of a proposal are those that were drawn here, or in a fork of this step."""
        width = proposal.tokens.shape[1]
        own = self._record.tokens()
        if own.shape[1] >= width:
            at = torch.arange(width, device=own.device)
            within = at < torch.tensor(proposal.lengths, device=own.device)[:, None]
            if bool(((own[:, :width] == proposal.tokens.to(own.device)) | ~within).all()):
                return True
        return any(fork.drew(proposal) for fork in self._forks[: self._forked])

    def fork(self, budget: Sequence[int]) -> DraftRecorder:
        """See `DraftRequest.fork`. The fork is valid until the next `start` and holds no token drawn here."""
        budget = check_fork(budget, self._budget)
        if self._forked == len(self._forks):
            batch, width, vocab = self._shape
            shared = self._to_probs, self._generators, batch, vocab, width, self._device
            self._forks.append(DraftRecorder(*shared, sampler=self._sampler.fork(), is_fork=True))
        fork = self._forks[self._forked]
        self._forked += 1
        fork.start(self._tokens, budget, self._hidden_states, self._keep_drafting, step=self._step)
        return fork

    def _draw(self, q: Tensor) -> Tensor:
        position = len(self._record)
        drawn = self._sampler.draw(q, lambda: self._step_uniforms()[:, position], position, self._left)
        token = drawn.clamp(max=self._shape[2] - 1)  # a new tensor: the drafter may change it
        self._record.add_written(token if drawn.device.type == "cpu" else drawn)
        self._advance(None if self._keep_drafting is None else confidence_in(token, q))
        return token

    def _advance(self, confidence: Tensor | Sequence[float] | None) -> None:
        """Count the token that every row has just taken, and ask the controller which rows draft another."""
        took = [left > 0 for left in self._left]
        for index, left in enumerate(self._left):
            if left:
                self._lengths[index] += 1
                self._left[index] = left - 1
        if self._keep_drafting is not None and confidence is not None:
            values = confidence.tolist() if isinstance(confidence, Tensor) else confidence
            on = self._keep_drafting([value if new else math.nan for value, new in zip(values, took, strict=True)])
            self._left = [left if more else 0 for left, more in zip(self._left, on, strict=True)]

    def _step_uniforms(self) -> Tensor:
        """Return the random numbers of this step on the device, `[B, K]` float64."""
        if self._uniforms is None:
            self._uniforms = uploaded(self._take_numbers(), self._device, torch.float64)
        return self._uniforms

    def _take_numbers(self) -> Numbers:
        """Return the random numbers of each row for this step."""
        if self._numbers is None:
            # Each row consumes as many as its own budget, so that its tokens do not depend on its neighbors.
            self._numbers = self._generators.numbers(self._budget, max(self._budget))
        return self._numbers

    def _current_prefixes(self) -> list[list[int]]:
        rows = enumerate(zip(self._tokens, self._record.rows(), strict=True))
        told = self._sampler.told
        return [[*row, *(told(token, n, at) for at, token in enumerate(new))] for n, (row, new) in rows]

    def _check_budget(self) -> None:
        if self._tree is not None:
            raise PluginError("a token was drawn for a line, but `tree` asks for a tree; use branch().")
        if not any(self._left):
            raise PluginError("the drafter drew a token although wants_more() was False: the budget is spent.")
        if self._record.extended:
            raise PluginError(
                "a token was drawn after extend() was called on this request; fork the request for one of them."
            )
