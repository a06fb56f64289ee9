"""Drawing draft tokens: from a drafter's logits to tokens, with the q that each was drawn from.

`DraftRecorder` is the core's half of drafting. A `DraftRecord` holds the tokens and q of a step.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from specdec_core.decoding.captured import CapturedLine
from specdec_core.decoding.rows import TokenView
from specdec_core.decoding.tree_draft import LevelDraft, TreeDraft
from specdec_core.decoding.validation import FLOATS, as_tensor, copied, drawn
from specdec_core.interface import (
    Branches,
    Candidates,
    Dense,
    DraftRequest,
    PluginError,
    PointMass,
    Proposal,
    Sparse,
)
from specdec_core.interface.proposal import Distribution, ProposalOrigin
from specdec_core.interface.settings import SamplingSettings
from specdec_core.interface.tree import TreeShape
from specdec_core.models.device import inference_only, moved, uploaded
from specdec_core.models.fast.static_step import Line
from specdec_core.sampling.candidates import (
    TemperedCandidates,
    best_candidate,
    check_candidates,
    tempered,
    write_log_weights,
)
from specdec_core.sampling.generators import RowGenerators, Uniforms, draw
from specdec_core.sampling.logits import PREFIX_READERS, LogitsToProbs, argmax
from specdec_core.verification.distributions import possible

if TYPE_CHECKING:
    from numpy.typing import NDArray

KeepDrafting: TypeAlias = Callable[[Sequence[float]], Sequence[bool]]
"""Asks the gamma controller which sequences draft another token, given q(x) of the token each has just drafted."""
Numbers: TypeAlias = list[list[float]]
"""Random numbers of each sequence."""
NewTree: TypeAlias = Callable[
    [TreeShape, Sequence[int], LogitsToProbs, "DraftRecord", Sequence[Sequence[int]], Callable[[], Numbers]],
    LevelDraft,
]
"""Makes a step's draft of a shape, given what `TreeDraft` is given."""


class DraftSampler:
    """Draws the tokens that a request records. A replay draws those of recorded texts instead."""

    def start(self, tokens: Sequence[Sequence[int]], budget: Sequence[int]) -> None:
        """Begin a step after the committed tokens of each sequence, with at most `budget[b]` draft tokens."""

    def draw(self, q: Tensor, uniforms: Callable[[], Uniforms], position: int, left: Sequence[int]) -> Tensor:  # noqa: ARG002
        """Return a token `[B]` of each sequence; any where q is NaN. The result is nobody else's.

        Args:
            q: `[B, V]`, what it is drawn from.
            uniforms: Returns the random numbers of this position, `[B]`.
            position: Of the token in the draft.
            left: How many tokens each sequence may still take; the token of one with 0 is not used.
        """
        return draw(q, uniforms())

    def draw_candidate(
        self,
        row: TemperedCandidates,
        uniform: float,
        index: int,  # noqa: ARG002
        position: int,  # noqa: ARG002
    ) -> tuple[int, float]:
        """Return a token of the sequence with this index, and its probability."""
        return row.draw(uniform)

    def told(self, token: int, index: int, position: int) -> int:  # noqa: ARG002
        """Return the token that a drafter is told it drew, where the record has this one."""
        return token

    def all_told(self, tokens: Tensor, position: int) -> Tensor:  # noqa: ARG002
        """Return the same for all sequences, `[B]`."""
        return tokens

    def fork(self) -> DraftSampler:
        """Return a sampler for a fork of the request."""
        return self


_Source: TypeAlias = "Literal['certain', 'written'] | list[TemperedCandidates | None]"
"""Where q of a position is: certain tokens, the buffer, or each row's candidates, None in rows without a token."""


class DraftRecord:
    """The tokens of a step, one per row and position, with the q that each was drawn from.

    Args:
        batch_size: B.
        max_gamma: Maximum number of positions.
        vocab_size: V.
        device: Device of the proposal.
    """

    def __init__(self, batch_size: int, max_gamma: int, vocab_size: int, device: torch.device) -> None:
        self._batch = batch_size
        self._shape = (batch_size, max_gamma, vocab_size)
        self.device = device
        self._buffer: Tensor | None = None
        self._columns = torch.zeros(batch_size, max_gamma, dtype=torch.long, device=device)  # of trees
        self._beside: DraftRecord | None = None
        self.clear()

    def clear(self) -> None:
        """Discard the record; the buffer for dense q is reused."""
        self._tokens: list[list[int] | Tensor] = []  # of each position
        self._sources: list[_Source] = []
        self._extension: list[list[int]] = []
        self._extended_q = False
        self._line: tuple[Tensor, Distribution] | None = None

    @property
    def extended(self) -> bool:
        """Whether tokens came by `extend`, any number of them per row."""
        return bool(self._extension)

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def buffer(self) -> Tensor:
        """Buffer for dense q, `[B, max_gamma, V]` float32, allocated when it is first needed.

        The q of one position are beside each other in memory: a GPU writes them without a copy.
        """
        if self._buffer is None:
            batch, width, vocab = self._shape
            by_position = torch.zeros(width, batch, vocab, dtype=torch.float32, device=self.device)
            self._buffer = by_position.transpose(0, 1)
        return self._buffer

    def on(self, device: torch.device) -> DraftRecord:
        """Return a record on a device for what is drawn there: this one, or another that is made once."""
        if device.type == self.device.type:
            return self
        if self._beside is None:
            self._beside = DraftRecord(*self._shape, device)
        return self._beside

    def next_q(self) -> Tensor:
        """Return the buffer for the q of the next position, `[B, V]` float32."""
        return self.buffer.select(1, len(self))

    def add(self, tokens: Tensor | list[int], source: _Source) -> None:
        """Record the tokens `[B]` of a position, which nobody else may change; on a GPU, certain ones as they are.

        Args:
            tokens: The tokens.
            source: Where its q is: in `next_q()` if it is written.
        """
        self._tokens.append(tokens.tolist() if isinstance(tokens, Tensor) and tokens.is_cpu else tokens)
        self._sources.append(source)

    def add_line(self, tokens: Tensor, q: Distribution) -> None:
        """Record all tokens `[B, K]`, which stay where they are, as does q. Nothing is added to them."""
        self._line = tokens, q
        self._sources = ["written"] * tokens.shape[1]

    def extend(self, rows: Sequence[Sequence[int]], q: Tensor | None) -> None:
        """Record further tokens of each row, any number of them. Cannot be combined with the `add_` methods.

        Args:
            rows: B sequences of tokens.
            q: `[B, K, V]`, the distribution of each, K at least the longest row; None where they were certain.
        """
        if not self._extension:
            self._extension = [[] for _ in range(self._batch)]
        for index, (had, new) in enumerate(zip(self._extension, rows, strict=True)):
            if q is not None:
                self.buffer[index, len(had) : len(had) + len(new)] = q[index, : len(new)]
            had.extend(new)
        self._extended_q = self._extended_q or q is not None

    def columns(self, count: int) -> Tensor:
        """Return the first columns of tokens, `[B, count]` int64, in memory that the next step overwrites."""
        return self._columns[:, :count]

    def write_columns(self, first: int, tokens: Tensor) -> None:
        """Write the tokens `[B, M]` of the columns from `first` on: nodes of a tree."""
        self._columns[:, first : first + tokens.shape[1]] = tokens

    def write_q(self, columns: Tensor, q: Tensor) -> None:
        """Write the q of the tokens in some columns `[C]`, `[B, C, V]`."""
        self.buffer[:, columns] = q

    def tokens(self) -> Tensor:
        """Return all tokens, `[B, K]` int64."""
        if self._line is not None:
            return self._line[0]
        if self._extension:
            return moved(Proposal.from_rows(self._extension).tokens, self.device)
        if not self._tokens:
            return self._columns[:, :0]
        if all(isinstance(tokens, list) for tokens in self._tokens):
            return uploaded(np.array(self._tokens).T, self.device)
        return torch.stack([self._at(number) for number in range(len(self))], dim=1)

    def _at(self, number: int) -> Tensor:
        """Return the tokens of a position, `[B]`."""
        tokens = self._tokens[number]
        return moved(tokens, self.device) if isinstance(tokens, Tensor) else uploaded(tokens, self.device)

    def q(self) -> Distribution:
        """Return q of all positions in the cheapest form, in memory that the next step overwrites."""
        sources = self._sources
        if self._line is not None:
            return self._line[1]
        if self._extended_q:
            return Dense(self.buffer[:, : max(map(len, self._extension))])
        if sources.count("certain") == len(sources):
            return PointMass()
        candidates = [source for source in sources if isinstance(source, list)]
        if len(candidates) == len(sources):
            widest = max(len(row.ids) for source in candidates for row in source if row is not None)
            if 3 * widest <= self._shape[2]:  # an int64 and a float32 for each, against V of float32
                return self._sparse(candidates, widest)
            return Dense(uploaded(np.stack(list(map(self._dense, candidates)), axis=1), self.device))
        for number, source in enumerate(sources):
            self._write(number, source)
        return Dense(self.buffer.narrow(1, 0, len(sources)))

    def _sparse(self, sources: Sequence[list[TemperedCandidates | None]], widest: int) -> Sparse:
        """Return the q of positions that were all drawn from candidates, at most `widest` of them."""
        shape = self._batch, len(sources), widest
        ids, probabilities = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
        for number, source in enumerate(sources):
            for index, row in enumerate(source):
                if row is not None:
                    count = len(row.ids)
                    ids[index, number, :count], ids[index, number, count:] = row.ids, row.ids[0]
                    probabilities[index, number, :count] = row.probabilities
        return Sparse(uploaded(ids, self.device), uploaded(probabilities, self.device))

    def _write(self, number: int, source: _Source) -> None:
        """Write the q of a position to the buffer, unless it is there."""
        if source == "certain":
            self.buffer[:, number].zero_().scatter_(1, self._at(number)[:, None], 1.0)
        elif isinstance(source, list):
            self.buffer[:, number].copy_(uploaded(self._dense(source), self.device))

    def _dense(self, source: list[TemperedCandidates | None]) -> NDArray[np.float32]:
        """Return the q of a position that was drawn from candidates, `[B, V]`."""
        written = np.zeros((self._batch, self._shape[2]), dtype=np.float32)
        for out, row in zip(written, source, strict=True):
            if row is not None:
                out[row.ids] = row.probabilities
        return written


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
        tokens: See `DraftRequest`, as for the next four.
        budget: The maximum number of draft tokens of each sequence.
        hidden_states: Hidden states of the target.
        tree: The shape of the draft; None for a line.
        depth: The maximum length of a path of each sequence.
        faults: What `possible` says of a line of a captured function; None if nothing can be wrong.
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
        self._line_sampler = CapturedLine(to_probs.settings)
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
        self.tokens, self.budget, self.hidden_states = tokens, budget, hidden_states or {}
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
        self._made: tuple[int, ...] | None = None  # the lengths of `proposal`
        self._forked = 0
        self._continued: list[DraftRecorder] = []  # forks after further tokens
        self._record.clear()
        self._sampler.start(tokens, budget)
        self.tree, self.depth = tree, budget if depth is None else depth
        self._levels: LevelDraft | None = None
        if tree is not None:
            self._levels = self._new_tree(tree, budget, self._to_probs, self._record, tokens, self._take_numbers)

    @inference_only
    def branch(self, logits: Tensor) -> Branches:
        """See `DraftRequest.branch`."""
        if self._levels is None:
            raise PluginError("branch() was called although `tree` is None: a line was asked for; use sample().")
        if not self._levels.wants_more():
            raise PluginError("branch() was called although wants_more() was False: the tree is drafted.")
        check_values(logits, "logits", "[B, P, V]", (self._shape[0], self._levels.width, self._shape[2]))
        drawn = self._levels.branch(logits if logits.is_cpu else moved(logits, self._device))
        # Copied, since the drafter may change what it gets.
        tokens, parents = (moved(part.clone(), logits.device) for part in (drawn.tokens, drawn.parents))
        return Branches(tokens, parents, drawn.lengths)

    @inference_only
    def sample(self, logits: Tensor) -> Tensor:
        """See `DraftRequest.sample`."""
        self._check_budget()
        check_values(logits, "logits", "[B, V]", (self._shape[0], self._shape[2]))
        prefixes = self._current_prefixes() if self._to_probs.needs_prefix else None
        token, scores = self._draw_next(moved(logits, self._device), prefixes)
        greedy = self._to_probs.greedy
        self._advance(lambda: confidence_in(token, scores.softmax(dim=-1) if greedy else scores))
        return moved(self._sampler.all_told(token, len(self._record) - 1) if greedy else token, logits.device)

    @inference_only
    def sample_line(self, run: Callable[[Line], Sequence[Tensor] | None]) -> bool:
        """See `DraftRequest.sample_line`."""
        begun = len(self._record) or self._record.extended or self._levels is not None
        if begun or type(self._sampler) is not DraftSampler:
            return False
        if reason := self._why_uncaptured():
            self._uncaptured = reason if self._device.type == "cuda" else None  # elsewhere it costs little
            return False
        numbers = [[] for _ in self.budget] if self._to_probs.greedy else self._take_numbers()
        made = run(
            Line(self._line_sampler, self.budget, numbers, self._device, lambda logits: self._draw_next(logits)[0])
        )
        if made is None:
            return False
        if made:
            width = max(self.budget)
            tokens, *sampled = made
            if sampled:
                self.faults = sampled[1][:, :width] if len(sampled) > 1 else None
            self._record.add_line(tokens[:, :width], Dense(sampled[0][:, :width]) if sampled else PointMass())
            self._in_line = True
        self._lengths, self._left = list(self.budget), [0] * len(self.budget)
        return True

    def _draw_next(self, logits: Tensor, prefixes: list[list[int]] | None = None) -> tuple[Tensor, Tensor]:
        """Draw and record a token of each sequence, `[B]`; return also q, or the scores if greedy, `[B, V]`."""
        if not self._to_probs.greedy:
            q = self._to_probs(logits, prefixes, out=self._record.next_q())
            return self._draw(q), q
        # q is one-hot on the drawn token: a point mass says so without V numbers a token.
        scores = self._to_probs.scores(logits, prefixes)
        token = argmax(scores)
        self._record.add(token, "certain")
        return token, scores

    @property
    def uncaptured(self) -> str | None:
        """Why this draft, or that of a fork, is captured pass by pass and not as a whole; None if it is not."""
        found = (self._uncaptured, *(fork._uncaptured for fork in self._forks[: self._forked]))
        return next(filter(None, found), None)

    def _why_uncaptured(self) -> str | None:
        if self._is_fork and self._device.type != "cpu":
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
        self._advance(lambda: confidence_in(token, q))
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
        self._record.add(tokens, drawn_from)
        self._advance(lambda: confidence)
        return list(tokens)

    def _draw_best(self, rows: Sequence[Candidates | None]) -> list[int]:
        tokens, confidence = [0] * len(rows), [1.0] * len(rows)
        for index, row in enumerate(rows):
            if row is not None and self._left[index]:
                tokens[index] = best_candidate(row)
                if self._keep_drafting is not None:
                    confidence[index] = tempered(row, 1.0).probability(tokens[index])
        position, took = len(self._record), [left > 0 for left in self._left]
        self._record.add(tokens, "certain")
        self._advance(lambda: confidence)
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
        if self._levels is not None:
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
        return any(self._left) if self._levels is None else self._levels.wants_more()

    @inference_only
    def proposal(self) -> Proposal:
        """Return everything drawn since `start`, as views of buffers that are valid until the next step."""
        if self._levels is not None:
            proposal = self._levels.proposal()
            if proposal.tokens.device.type != self._device.type:
                proposal = copied(proposal, self._device)
        else:
            proposal = Proposal(self._record.tokens(), tuple(self._lengths), self._record.q())
        self._made = proposal.lengths
        step = None if self._drawn_directly else self._step
        return proposal.made_by_core(ProposalOrigin(step=step, captured=self._in_line))

    def made(self, proposal: object) -> bool:
        """Return whether a proposal was drawn from logits in this step, by this request or a fork of it.

        Its ids are then legal, and its q sums to 1.
        """
        return isinstance(proposal, Proposal) and proposal.origin.step is self._step

    def checked(self, proposal: Proposal, depth: tuple[int, ...] | None) -> tuple[Proposal, Tensor | None]:
        """Return a proposal that was `made` here as `validate` does, without copying or checking what is known."""
        if proposal.origin.captured:
            return proposal, self.faults
        if proposal.lengths is not self._made:  # shortened by the drafter, or that of a fork
            return drawn(proposal, self.budget, self._device, depth)
        # NaN logits make q NaN; the core rejects NaN before it draws from candidates.
        return proposal, possible(proposal) if isinstance(proposal.q, Dense) else None

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

    def fork(self, budget: Sequence[int], after: Sequence[Sequence[int]] | None = None) -> DraftRecorder:
        """See `DraftRequest.fork`. The fork is valid until the next `start` and holds no token drawn here."""
        if after is not None:
            return self._fork_after(budget, after)
        budget = check_fork(budget, self.budget)
        if self._forked == len(self._forks):
            batch, width, vocab = self._shape
            shared = self._to_probs, self._generators, batch, vocab, width, self._device
            self._forks.append(DraftRecorder(*shared, sampler=self._sampler.fork(), is_fork=True))
        fork = self._forks[self._forked]
        self._forked += 1
        fork.start(self.tokens, budget, self.hidden_states, self._keep_drafting, step=self._step)
        return fork

    def _fork_after(self, budget: Sequence[int], after: Sequence[Sequence[int]]) -> DraftRecorder:
        """Return a fork whose tokens are drawn freely, in replays too: they are not those of the draft."""
        batch, _, vocab = self._shape
        after = check_extension(after, None, batch, vocab, call="fork()")
        room = [most - len(new) for most, new in zip(self.budget, after, strict=True)]
        if min(room) < 0:
            raise PluginError(
                f"fork() was given {list(map(len, after))} tokens to continue after; the request's own budget is "
                f"{list(self.budget)}."
            )
        budget = check_fork(tuple(map(min, budget, self._left, room)), self.budget)
        shared = self._to_probs, self._generators, batch, vocab, max(budget), self._device
        fork = DraftRecorder(*shared, is_fork=True)
        pairs = zip(self.tokens, after, strict=True)
        fork.start([TokenView([*row, *new]) for row, new in pairs], budget)
        self._continued.append(fork)
        return fork

    def settle(self) -> None:
        """Have forks after further tokens show the committed ones from now on, which grow as those here do."""
        for fork in self._continued:
            for view, row in zip(fork.tokens, self.tokens, strict=True):
                cast(TokenView, view).follow(cast(TokenView, row))
        for fork in (*self._forks[: self._forked], *self._continued):
            fork.settle()
        self._continued.clear()

    def _draw(self, q: Tensor) -> Tensor:
        position = len(self._record)
        token = self._sampler.draw(q, lambda: self._uniforms_at(position), position, self._left)
        self._record.add(token, "written")
        return token

    def _advance(self, confidence: Callable[[], Tensor | Sequence[float]]) -> None:
        """Count the token that every row has just taken, and ask the controller which rows draft another."""
        took = [left > 0 for left in self._left]
        for index, left in enumerate(self._left):
            if left:
                self._lengths[index] += 1
                self._left[index] = left - 1
        if self._keep_drafting is not None:
            read = confidence()
            values = read.tolist() if isinstance(read, Tensor) else read
            on = self._keep_drafting([value if new else math.nan for value, new in zip(values, took, strict=True)])
            self._left = [left if more else 0 for left, more in zip(self._left, on, strict=True)]

    def _uniforms_at(self, position: int) -> Uniforms:
        """Return the random numbers of a position, `[B]`: float64 on a GPU, which gets those of a step at once."""
        if self._device.type == "cpu":
            return [row[position] for row in self._take_numbers()]
        if self._uniforms is None:
            self._uniforms = uploaded(self._take_numbers(), self._device, torch.float64)
        return self._uniforms[:, position]

    def _take_numbers(self) -> Numbers:
        """Return the random numbers of each row for this step."""
        if self._numbers is None:
            # Each row consumes as many as its own budget, so that its tokens do not depend on its neighbors.
            self._numbers = self._generators.numbers(self.budget, max(self.budget))
        return self._numbers

    def _current_prefixes(self) -> list[list[int]]:
        rows = enumerate(zip(self.tokens, self._record.tokens().tolist(), strict=True))
        told = self._sampler.told
        return [[*row, *(told(token, n, at) for at, token in enumerate(new))] for n, (row, new) in rows]

    def _check_budget(self) -> None:
        if self._levels is not None:
            raise PluginError("a token was drawn for a line, but `tree` asks for a tree; use branch().")
        if not any(self._left):
            raise PluginError("the drafter drew a token although wants_more() was False: the budget is spent.")
        if self._record.extended:
            raise PluginError(
                "a token was drawn after extend() was called on this request; fork the request for one of them."
            )


class _BestSampler(DraftSampler):
    """Takes the most probable token."""

    def draw(self, q: Tensor, uniforms: Callable[[], Uniforms], position: int, left: Sequence[int]) -> Tensor:  # noqa: ARG002
        return q.argmax(-1)


def greedy_request(
    tokens: Sequence[Sequence[int]], budget: Sequence[int], vocab_size: int, device: torch.device | str
) -> DraftRequest:
    """Return a request that answers each draw with the most probable token.

    Args:
        tokens: The committed tokens of each sequence, in ids of any vocabulary.
        budget: The maximum number of tokens to draft for each sequence.
        vocab_size: The size of that vocabulary.
        device: Device of the proposal.
    """
    to_probs, generators = LogitsToProbs(SamplingSettings(temperature=0)), RowGenerators([0] * len(budget))
    sizes = len(budget), vocab_size, max(budget), device
    request = DraftRecorder(to_probs, generators, *sizes, sampler=_BestSampler())
    request.start(tokens, tuple(budget))
    return request


def confidence_in(token: Tensor, q: Tensor) -> Tensor:
    """Return the probability `[B]` of each row's token `[B]` in q `[B, V]`."""
    return q.gather(1, token[:, None])[:, 0]


def cut_by_confidence(
    rows: Sequence[list[int]], left: list[int], q: Tensor | None, keep_drafting: KeepDrafting
) -> None:
    """Cut drafts where the gamma controller would have ended them.

    Args:
        rows: The tokens of each row; cut in place.
        left: How many tokens each row may still draft; 0 afterwards in a row that was ended.
        q: `[B, K, V]`, the distribution of each token; None where they were certain.
        keep_drafting: Asks the controller.
    """
    for position in range(max(map(len, rows))):
        for row, more in enumerate(keep_drafting(_confidence_at(position, rows, q))):
            if not more and position < len(rows[row]):
                del rows[row][position + 1 :]
                left[row] = 0


def _confidence_at(position: int, rows: Sequence[Sequence[int]], q: Tensor | None) -> list[float]:
    """Return q of the tokens at a position: 1 where they were certain, NaN in rows that have none there."""
    return [
        math.nan if position >= len(row) else 1.0 if q is None else float(q[index, position, row[position]])
        for index, row in enumerate(rows)
    ]


def check_values(values: Tensor, what: str, axes: str, shape: tuple[int, ...]) -> None:
    """Check the dtype and the shape of logits or probabilities.

    Args:
        values: The tensor.
        what: What it is, for messages, as a plural.
        axes: The names of its axes, such as `[B, V]`.
        shape: Their lengths.

    Raises:
        PluginError: It is not a tensor of floats of this shape.
    """
    if not isinstance(values, Tensor) or values.dtype not in FLOATS or tuple(values.shape) != shape:
        is_tensor = isinstance(values, Tensor)
        given = f"{values.dtype} of shape {tuple(values.shape)}" if is_tensor else f"a {type(values).__name__}"
        raise PluginError(f"{what} are {given}; expected a float tensor {axes}, {shape} here.")


def check_candidate_rows(rows: Sequence[Candidates | None], left: Sequence[int], vocab_size: int) -> None:
    """Check the candidates for the next token of each row.

    Args:
        rows: The candidates of each row, or None in rows that take no token.
        left: How many tokens each row may still take.
        vocab_size: V.

    Raises:
        PluginError: Their number is wrong, some are missing, or some are not valid.
    """
    if len(rows) != len(left):
        raise PluginError(f"{len(rows)} rows were given; the batch has {len(left)}.")
    for number, row in enumerate(rows):
        if row is None:
            if left[number]:
                raise PluginError(f"None was given for row {number}, which may still take {left[number]} tokens.")
        elif not isinstance(row, Candidates):
            raise PluginError(f"row {number} is a {type(row).__name__}; expected Candidates or None.")
        else:
            check_candidates(row, vocab_size)


def check_extension(
    tokens: Sequence[Sequence[int]], q: Tensor | None, batch_size: int, vocab_size: int, call: str = "extend()"
) -> list[list[int]]:
    """Return the rows of an extension as plain numbers.

    Args:
        tokens: The next tokens of each row.
        q: The distribution of each, `[B, K, V]` with K at least the longest row; None where they are certain.
        batch_size: B.
        vocab_size: V.
        call: The method that they were given to, for messages.

    Raises:
        PluginError: A token is outside the vocabulary, or the number of rows or the shape of q is wrong.
    """
    rows = [list(map(operator.index, row)) for row in tokens]
    if len(rows) != batch_size or not all(0 <= token < vocab_size for row in rows for token in row):
        raise PluginError(
            f"{call} was given {reprlib.repr(rows)}; expected {batch_size} rows of token ids from 0 to "
            f"{vocab_size - 1}."
        )
    if q is not None:
        shape = tuple(as_tensor(q, "probabilities of extend()", "[B, K, V] float", FLOATS).shape)
        longest = max(map(len, rows))
        if len(shape) != 3 or (shape[0], shape[2]) != (batch_size, vocab_size) or shape[1] < longest:
            raise PluginError(
                f"extend() was given q of shape {shape}; [B, K, V] is {(batch_size, longest, vocab_size)} here."
            )
    return rows


def check_fork(budget: Sequence[int], limits: Sequence[int]) -> tuple[int, ...]:
    """Return the budget of a fork.

    Args:
        budget: The maximum number of draft tokens of each row in the fork.
        limits: The same of the request.

    Raises:
        PluginError: It exceeds that of the request.
    """
    budget = tuple(budget)
    if len(budget) != len(limits) or not all(0 <= own <= most for own, most in zip(budget, limits, strict=True)):
        raise PluginError(
            f"a request was forked with the budget {list(budget)}; expected {len(limits)} numbers from 0 to the "
            f"request's own: {list(limits)}."
        )
    return budget
