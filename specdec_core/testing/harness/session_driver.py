"""A driver of draft sessions: a check inspects each proposal, and decides on the tokens to commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeVar

from torch import Tensor

from specdec_core._time_limit import TimeLimitExceeded
from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.opening import LoopContext
from specdec_core.decoding.request import DraftRecorder, KeepDrafting
from specdec_core.decoding.tokens import TokenView
from specdec_core.decoding.validation import BAD_ID, FAULTS, check_form
from specdec_core.interface import LAST_HIDDEN, Drafter, DraftSession, Outcome, Proposal, SessionInfo
from specdec_core.interface.errors import PluginError, is_failure
from specdec_core.interface.settings import SamplingSettings
from specdec_core.interface.tree import TreeShape
from specdec_core.sampling.generators import RowGenerators, row_seed
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.testing.causes import drafting_advice, hidden_advice, what_failed
from specdec_core.testing.harness.drafts import Draft, drafts_of, id_outside, require_paths
from specdec_core.testing.harness.tiny_target import PROMPT, TinyTarget
from specdec_core.testing.registration import CheckFailure

T = TypeVar("T")

CAPACITY = 96
"""Maximum number of tokens of a row in a driven session."""


class _Generators(RowGenerators):
    """Row generators that can be reseeded, for rows with any indices."""

    def __init__(self, seed: int, indices: Sequence[int]) -> None:
        self._indices = indices
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Start again from a seed."""
        RowGenerators.__init__(self, [row_seed(seed, index) for index in self._indices])


class _Request(DraftRecorder):
    """The request of the core, which notes whether its hidden states were read."""

    read_hidden = False

    def __getattribute__(self, name: str) -> Any:
        if name == "hidden_states":
            super().__setattr__("read_hidden", True)
        return super().__getattribute__(name)


class SessionDriver:
    """Drives a drafter's session over a batch, with the sampler that the core itself uses.

    Args:
        target: The target.
        drafter: The drafter.
        rows: The committed tokens that each row begins with.
        sources: With an encoder, the source of each row.
        sampling: Sampling settings of drafts.
        tree: The shape of drafts, whose budgets are then numbers of tokens in all; None for lines.
        max_gamma: Maximum draft length.
        seed: Seed of the rows' generators.
        indices: The index in the batch whose generator each row uses; by default its own.
        prefilled: Whether the target has processed the rows, so that there are hidden states from the first step.
        primed: Whether a drafter that remembers is reset and taught a text first. All sessions then begin with the
            same knowledge, whatever was drafted before.

    Attributes:
        rows: The committed tokens of each row.
        first_rows: The tokens that they began with.
        committed: The tokens that the last commit appended to each row.
        finished: Which rows have ended.
        sampling: The sampling settings.
        tree: The shape of drafts; None for lines.
        info: What the session was opened with.
        session: The session.
        drafts: The last drafts.
        hidden: The hidden state `[B, D]` of `LAST_HIDDEN` in the last request and a copy from before it, or None.

    Raises:
        CheckFailure: The session cannot be opened. Methods raise it when a call into the session fails, or
            does not return a proposal.
    """

    def __init__(
        self,
        target: TinyTarget,
        drafter: Drafter,
        rows: Sequence[Sequence[int]],
        *,
        sources: Sequence[Sequence[int]] | None = None,
        sampling: SamplingSettings | None = None,
        tree: TreeShape | None = None,
        max_gamma: int = 4,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        prefilled: bool = False,
        primed: bool = True,
    ) -> None:
        if primed and drafter.remembers:
            _prime(target, drafter)
        self.target, self.drafter = target, drafter
        self.rows = [list(row) for row in rows]
        self._views = tuple(map(TokenView, self.rows))
        self.first_rows = tuple(map(tuple, self.rows))
        self.committed: tuple[tuple[int, ...], ...] = ((),) * len(rows)
        self.finished = [False] * len(rows)
        self.sources = [list(PROMPT)] * len(rows) if sources is None else [list(source) for source in sources]
        self.sampling = sampling or SamplingSettings()
        self.tree = tree
        self.hidden: tuple[Tensor, Tensor] | None = None
        self._prefilled = prefilled
        self._seed = seed
        self._log = [f"opened a session for {_rows(self.rows)} on {target}"]
        self._indices = range(len(rows)) if indices is None else indices
        self._generators = _Generators(seed, self._indices)
        to_probs = LogitsToProbs(self.sampling)
        self.info = LoopContext(to_probs, self._generators, PluginGuard(strict=True)).with_loop(
            _session_info(target, tuple(map(tuple, self.sources)), max_gamma, trees=tree is not None)
        )
        vocab, device = target.loaded.vocab_size, target.loaded.device
        self._recorder = _Request(to_probs, self._generators, len(rows), vocab, max_gamma, device)
        self.session: DraftSession = self._call(lambda: drafter.open(self.info), "a DraftSession")
        if not isinstance(self.session, DraftSession):
            raise self.failure(f"{type(self.session).__name__}: {self.session!r}", "a DraftSession")
        self.drafts: list[Draft] = [Draft((), ())] * len(rows)

    def propose(
        self,
        budget: Sequence[int],
        *,
        seed: int | None = None,
        depth: Sequence[int] | None = None,
        keep_drafting: KeepDrafting | None = None,
    ) -> Proposal:
        """Request a proposal.

        Args:
            budget: Maximum draft length of each row.
            seed: Reseed the rows' generators first.
            depth: For trees, the maximum length of each row's paths; by default the shape's.
            keep_drafting: Decides which rows draft another token, given q of the token that each has just drawn.

        Raises:
            CheckFailure: The session raised, or did not return a proposal for these rows.
        """
        if seed is not None:
            self._generators.reseed(seed)
        if self.tree is None:
            budget = limits = self.drafter.clipped(self.rows, budget)
            self._log.append(f"requested {_list(budget)} tokens after {_rows(self.rows)}")
        else:
            limits = self.drafter.clipped(self.rows, [self.tree.depth] * len(budget) if depth is None else depth)
            budget = [min(n, sum(self.tree.widths[:deep])) for n, deep in zip(budget, limits, strict=True)]
            shape = f"{_list(budget)} tokens of {self.tree}, paths of at most {_list(limits)}"
            self._log.append(f"requested {shape}, after {_rows(self.rows)}")
        states = (
            self.target.hidden_states(self.drafter.hidden_layers, self.rows, self.sources)
            if self._prefilled
            else {}
        )
        last = states.get(LAST_HIDDEN)
        self.hidden = None if last is None else (last, last.clone())
        self._recorder.start(self._views, tuple(budget), states, keep_drafting, self.tree, limits)
        self._recorder.read_hidden = False
        proposal = self._recorder.proposal()  # empty
        if self.drafter.ready(states):
            proposal = self._call(lambda: self.session.propose(self._recorder), "a Proposal")
        self._require_proposal(proposal, tuple(budget), limits)
        self.drafts = drafts_of(proposal, self.target.loaded.vocab_size)
        of = (
            ""
            if proposal.parents is None
            else f" with parents {_rows([draft.parents or () for draft in self.drafts])}"
        )
        self._log.append(f"it drafted {_rows([draft.tokens for draft in self.drafts])}{of}")
        return proposal

    def draft(self, budget: Sequence[int], *, seed: int | None = None) -> list[Draft]:
        """Request a proposal as `propose` does; return the draft of each row."""
        self.propose(budget, seed=seed)
        return self.drafts

    def accept(
        self, accepted: Sequence[int], next_tokens: Sequence[int], finished: Sequence[bool] | None = None
    ) -> None:
        """Commit the first tokens of each row's draft, and one token after them; of a tree, those of a path.

        Args:
            accepted: How many draft tokens of each row are accepted, cut to the length of the draft.
            next_tokens: The recovered or bonus token of each row.
            finished: Which rows end now. Nothing is committed to rows that have ended before.
        """
        tails = [() if ended else (token,) for token, ended in zip(next_tokens, self.finished, strict=True)]
        counts = [0 if ended else count for count, ended in zip(accepted, self.finished, strict=True)]
        if finished is not None:
            self.finished = [now or before for now, before in zip(finished, self.finished, strict=True)]
        self.commit_drafts(counts, tails)

    def commit_drafts(
        self, accepted: Sequence[int], tails: Sequence[Sequence[int]], mine: Sequence[bool] | None = None
    ) -> None:
        """Commit the first tokens of each row's draft, of a tree those of a path, and any tokens after them.

        Args:
            accepted: How many draft tokens of each row are accepted, cut to the length of the draft.
            tails: The tokens after them.
            mine: The rows in which this draft was used, and not another drafter's; by default all.
        """
        mine = [True] * len(self.rows) if mine is None else mine
        drafts = [draft if own else Draft((), ()) for draft, own in zip(self.drafts, mine, strict=True)]
        drafted = tuple(len(draft.tokens) for draft in drafts)
        paths = tuple(draft.path(count) for draft, count in zip(drafts, accepted, strict=True))
        new = [
            (*(draft.tokens[number] for number in path), *tail)
            for draft, path, tail in zip(drafts, paths, tails, strict=True)
        ]
        tree = any(draft.parents is not None for draft in self.drafts)
        self.commit(
            Outcome(
                drafted,
                tuple(map(len, paths)),
                tuple(new),
                tuple(self.finished),
                parents=tuple(draft.parents or () for draft in drafts) if tree else None,
                paths=paths if tree else None,
            )
        )

    def commit_unused(self, new: Sequence[Sequence[int]]) -> None:
        """Commit the tokens of a step in which this drafter was not used."""
        zeros = (0,) * len(self.rows)
        self.commit(Outcome(zeros, zeros, tuple(map(tuple, new)), tuple(self.finished)))

    def commit(self, outcome: Outcome) -> None:
        """Append the committed tokens, and call the session's `commit`."""
        self.committed = outcome.committed
        self._prefilled = True
        for row, new in zip(self.rows, outcome.committed, strict=True):
            row.extend(new)
        how = f"accepted {_list(outcome.accepted)} of them" if any(outcome.drafted) else "did not use the drafter"
        ended = f"; finished: {_list(outcome.finished)}" if any(outcome.finished) else ""
        self._log.append(f"{how} and committed {_rows(outcome.committed)}{ended}")
        self._call(lambda: self.session.commit(outcome), "no exception")

    def rollback(self, lengths: Sequence[int]) -> None:
        """Drop all but the first `lengths[b]` tokens of each row b, and call the session's `rollback`."""
        for row, length in zip(self.rows, lengths, strict=True):
            del row[length:]
        self._log.append(f"rolled back to {_list(lengths)} committed tokens")
        self._call(lambda: self.session.rollback(tuple(lengths)), "no exception")

    def close(self) -> None:
        """Close the session."""
        self._log.append("closed the session")
        self._call(self.session.close, "no exception")

    def reopen(self) -> SessionDriver:
        """Return a driver with a new session that begins with the tokens committed so far."""
        return SessionDriver(
            self.target,
            self.drafter,
            self.rows,
            sources=self.sources,
            sampling=self.sampling,
            tree=self.tree,
            max_gamma=self.info.max_gamma,
            seed=self._seed,
            indices=self._indices,
            prefilled=self._prefilled,
        )

    @property
    def log(self) -> str:
        """Everything that was done with this session, one action per line."""
        return "\n".join(self._log)

    @property
    def advice(self) -> str:
        """Which function of the author drafts, where it is, and what it must return."""
        return drafting_advice(self.drafter, self.session)

    def failure(
        self, got: str, expected: str, hint: str | None = None, *, cause: str | None = None
    ) -> CheckFailure:
        """Return a failure that reports everything that was done with this session."""
        return CheckFailure(self.log, got, expected, hint, cause=cause)

    def _call(self, function: Callable[[], T], expected: str) -> T:
        try:
            return function()
        except TimeLimitExceeded as stopped:
            stopped.did = stopped.did or self.log
            raise
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self.failure(what_failed(error), expected, self._missing_hidden(error)) from error

    def _missing_hidden(self, error: BaseException) -> str | None:
        """Return what to do if the session failed since it read hidden states that the request did not have."""
        if isinstance(error, KeyError) and self._recorder.read_hidden:
            return hidden_advice(self.drafter, self.session)
        return None

    def _require_proposal(self, proposal: object, budget: tuple[int, ...], depth: tuple[int, ...]) -> None:
        vocab, outside = self.target.loaded.vocab_size, ""
        try:
            checked = check_form(proposal, budget, vocab)
            outside = id_outside(checked, vocab)
            if outside:
                raise PluginError(FAULTS[BAD_ID].format(last=vocab - 1))
            require_paths(checked, depth, tree=self.tree is not None)
        except Exception as error:
            if isinstance(proposal, Proposal) and getattr(proposal.tokens, "ndim", 0) == 2:
                drafted = zip(proposal.tokens.tolist(), proposal.lengths, strict=False)
                self._log.append(f"it drafted {_rows([row[:length] for row, length in drafted])}")
            got = f"{outside}: {error}" if outside else what_failed(error)
            expected = (
                f"a Proposal for {len(budget)} row(s): tokens [B, K] int64, at most {_list(budget)} of them, with "
                f"ids from 0 to {vocab - 1}, and a q of the same shape"
            )
            if self.tree is not None:
                expected += f"; parents that come before their tokens, and paths of at most {_list(depth)}"
            raise self.failure(got, expected, self.advice) from error


def _prime(target: TinyTarget, drafter: Drafter) -> None:
    """Have a drafter that remembers know one text and nothing else."""
    drafter.reset()
    teacher = SessionDriver(target, drafter, [target.begin()], primed=False)
    teacher.draft([1])
    teacher.accept([0], [PROMPT[0]])
    teacher.commit_unused([[*PROMPT, *reversed(PROMPT)]])
    teacher.draft([1])
    teacher.close()


def seconds_of_a_call(target: TinyTarget, drafter: Drafter, rows: int, seed: int) -> float:
    """Return how long a drafter takes to propose for some rows: the faster of two calls, after a first one."""
    driver = SessionDriver(target, drafter, [target.begin()] * rows, seed=seed)
    seconds = []
    for _ in range(3):
        began = perf_counter()
        driver.propose([4] * rows)
        seconds.append(perf_counter() - began)
        driver.accept([1] * rows, [3] * rows)
    driver.close()
    return min(seconds[1:])


def _session_info(
    target: TinyTarget, sources: Sequence[Sequence[int]], max_gamma: int, *, trees: bool
) -> SessionInfo:
    return SessionInfo(
        batch_size=len(sources),
        vocab_size=target.loaded.vocab_size,
        capacity=CAPACITY,
        max_gamma=max_gamma,
        device=target.loaded.device,
        sources=sources if target.encoder_decoder else None,
        trees=trees,
    )


def _rows(rows: Sequence[Sequence[int]]) -> str:
    """Return rows of tokens as text: the first four."""
    shown = ", ".join(map(_list, rows[:4]))
    return f"[{shown}{f', ... ({len(rows)} rows)' if len(rows) > 4 else ''}]"


def _list(values: Sequence[object]) -> str:
    """Return values as text: the last twelve."""
    shown = [str(value) for value in values[-12:]]
    return f"[{', '.join(['...'] * (len(values) > 12) + shown)}]"
