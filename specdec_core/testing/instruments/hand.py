"""A draft session led by hand: what it proposes is looked at, and what is kept is for the check to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from specdec_core.border import Drafter, DraftRequest, DraftSession, Outcome, Proposal, SessionInfo
from specdec_core.decoding.checking import check_form
from specdec_core.decoding.drafting import DraftRecorder, Watcher
from specdec_core.decoding.inner_loop import LoopOpener
from specdec_core.decoding.speculation import Fence
from specdec_core.errors import PluginError
from specdec_core.randomness import RowStreams, row_seed
from specdec_core.sampling import Standardiser
from specdec_core.settings import SamplingSettings
from specdec_core.testing.checking import CheckFailure
from specdec_core.testing.failing import told
from specdec_core.testing.instruments.drafts import Draft, drafts_of
from specdec_core.testing.instruments.world import PROMPT, World, fresh_logits

T = TypeVar("T")

CAPACITY = 96
"""The most tokens a row may hold in a session that is led by hand."""


class _Streams(RowStreams):
    """Random numbers that can be begun again, for rows of any numbers."""

    def __init__(self, seed: int, rows: Sequence[int]) -> None:
        self._rows = rows
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Go on as if made just now, from a seed."""
        RowStreams.__init__(self, [row_seed(seed, row) for row in self._rows])


class Hand:
    """A drafter's session over a batch, led by hand, with the sampler that the core itself uses.

    Args:
        world: The target.
        drafter: Whose session it is.
        rows: The committed tokens that each row begins with.
        sources: With an encoder, what each row answers.
        sampling: The settings for drafts.
        max_gamma: The most tokens that will be asked for.
        seed: Of the rows' random numbers.
        numbers: Which random numbers each row draws with: those of the row of this number in a batch; by default
            its own.
        midway: Whether the target has read the rows already, so that hidden states are there from the first step.

    Attributes:
        rows: The committed tokens of each row.
        first_rows: The tokens that they began with.
        committed: What was last committed in each row.
        finished: Which rows have ended.
        info: What the session was opened with.
        session: The session.
        drafts: What it drafted last.
        hidden: The hidden states that came with the last request, if any, and a copy from before.

    Raises:
        CheckFailure: The session cannot be opened. Methods raise it where a call into the session fails, or a
            proposal is none.
    """

    def __init__(
        self,
        world: World,
        drafter: Drafter,
        rows: Sequence[Sequence[int]],
        *,
        sources: Sequence[Sequence[int]] | None = None,
        sampling: SamplingSettings | None = None,
        max_gamma: int = 4,
        seed: int = 0,
        numbers: Sequence[int] | None = None,
        midway: bool = False,
    ) -> None:
        self.world, self.drafter = world, drafter
        self.rows = [list(row) for row in rows]
        self.first_rows = tuple(map(tuple, self.rows))
        self.committed: tuple[tuple[int, ...], ...] = ((),) * len(rows)
        self.finished = [False] * len(rows)
        self.sources = [list(PROMPT)] * len(rows) if sources is None else [list(source) for source in sources]
        self._sampling = sampling or SamplingSettings()
        self._midway = midway
        self._seed = seed
        self._story = [f"opened a session for {_rows(self.rows)} on {world}"]
        self._numbers = range(len(rows)) if numbers is None else numbers
        self._streams = _Streams(seed, self._numbers)
        standardiser = Standardiser(self._sampling)
        self.info = LoopOpener(standardiser, self._streams, Fence(strict=True)).for_session(
            _session_info(world, self.sources, max_gamma)
        )
        vocab, device = world.target.vocab_size, world.target.device
        self._recorder = DraftRecorder(standardiser, self._streams, len(rows), vocab, max_gamma, device)
        self.session: DraftSession = self._call(lambda: drafter.open(self.info), "a DraftSession")
        if not isinstance(self.session, DraftSession):
            raise self.failure(f"{type(self.session).__name__}: {self.session!r}", "a DraftSession")
        self.drafts: list[Draft] = [Draft((), ())] * len(rows)
        self.hidden: tuple[Tensor, Tensor] | None = None

    def propose(
        self, budget: Sequence[int], *, seed: int | None = None, watcher: Watcher | None = None
    ) -> Proposal:
        """Ask for a draft.

        Args:
            budget: The most tokens of each row.
            seed: Begin the rows' random numbers again from this.
            watcher: Says which rows draft on, given q of the token that each has just drawn.

        Raises:
            CheckFailure: The session raised, or what it returned is no proposal for these rows.
        """
        if seed is not None:
            self._streams.restart(seed)
        self._story.append(f"asked for {_list(budget)} tokens after {_rows(self.rows)}")
        self._recorder.start(self.rows, tuple(budget), watcher)
        states = self._hidden()
        self.hidden = None if states is None else (states, states.clone())
        request = DraftRequest(self.rows, tuple(budget), self._recorder, states)
        proposal = self._call(lambda: self.session.propose(request), "a Proposal")
        fault = _no_proposal(proposal, len(self.rows), self.world.target.vocab_size)
        if fault is not None:
            raise self.failure(*fault)
        self.drafts = drafts_of(proposal, self.world.target.vocab_size)
        self._story.append(f"it drafted {_rows([draft.tokens for draft in self.drafts])}")
        return proposal

    def draft(self, budget: Sequence[int], *, seed: int | None = None) -> list[Draft]:
        """Ask for a draft as `propose` does; return tokens and q of each row, copied."""
        self.propose(budget, seed=seed)
        return self.drafts

    def keep(self, kept: Sequence[int], last: Sequence[int], finished: Sequence[bool] | None = None) -> None:
        """Commit some tokens of the draft in each row, and one that the target drew.

        Args:
            kept: How many draft tokens of each row are accepted; no more than there are is taken.
            last: The recovered or bonus token of each row.
            finished: Which rows end with it; those that have ended get nothing.
        """
        drafted = tuple(len(draft.tokens) for draft in self.drafts)
        accepted = tuple(
            0 if over else min(n, most) for n, most, over in zip(kept, drafted, self.finished, strict=True)
        )
        new = [
            () if over else (*draft.tokens[:n], token)
            for draft, n, token, over in zip(self.drafts, accepted, last, self.finished, strict=True)
        ]
        if finished is not None:
            self.finished = [now or before for now, before in zip(finished, self.finished, strict=True)]
        self.commit(Outcome(drafted, accepted, tuple(new), tuple(self.finished), used=any(drafted)))

    def kept_of(self, kept: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the first tokens of each row's draft, as many as there are."""
        return [draft.tokens[:n] for draft, n in zip(self.drafts, kept, strict=True)]

    def pass_by(self, new: Sequence[Sequence[int]]) -> None:
        """Commit tokens of a step in which this drafter was not asked."""
        nothing = (0,) * len(self.rows)
        self.commit(Outcome(nothing, nothing, tuple(map(tuple, new)), tuple(self.finished), used=False))

    def commit(self, outcome: Outcome) -> None:
        """Append what was committed, and tell the session."""
        self.committed = outcome.committed
        self._midway = True
        for row, new in zip(self.rows, outcome.committed, strict=True):
            row.extend(new)
        how = f"kept {_list(outcome.accepted)} of it" if outcome.used else "did not use the drafter"
        ended = f"; ended: {_list(outcome.finished)}" if any(outcome.finished) else ""
        self._story.append(f"{how} and committed {_rows(outcome.committed)}{ended}")
        self._call(lambda: self.session.commit(outcome), "no exception")

    def rollback(self, lengths: Sequence[int]) -> None:
        """Take commits back: forget all but the first tokens of each row, and tell the session."""
        for row, length in zip(self.rows, lengths, strict=True):
            del row[length:]
        self._story.append(f"rolled back to {_list(lengths)} committed tokens")
        self._call(lambda: self.session.rollback(tuple(lengths)), "no exception")

    def close(self) -> None:
        """Close the session."""
        self._story.append("closed the session")
        self._call(self.session.close, "no exception")

    def again(self) -> Hand:
        """Return a session opened just now on the tokens that are committed by now."""
        return Hand(
            self.world,
            self.drafter,
            self.rows,
            sources=self.sources,
            sampling=self._sampling,
            max_gamma=self.info.max_gamma,
            seed=self._seed,
            numbers=self._numbers,
            midway=self._midway,
        )

    def failure(self, got: str, expected: str, hint: str | None = None) -> CheckFailure:
        """Return a failure that tells all that was done with this session."""
        return CheckFailure("\n".join(self._story), got, expected, hint)

    def _call(self, function: Callable[[], T], expected: str) -> T:
        try:
            return function()
        except Exception as error:
            raise self.failure(told(error), expected) from error

    @torch.inference_mode()
    def _hidden(self) -> Tensor | None:
        """Return what each row's last token was predicted from, `[B, D]`, where the drafter wants that."""
        features = self.world.target.features
        if not (self.drafter.needs_hidden_states and self._midway) or features is None:
            return None
        if min(map(len, self.rows)) < 2:
            return None  # the target has read nothing before the start token
        states: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}
        read = [(tuple(row[:-1]), tuple(source)) for row, source in zip(self.rows, self.sources, strict=True)]
        for row, source in dict.fromkeys(read):
            with features.capture() as seen:
                fresh_logits(self.world.target, [row], source)
            states[row, source] = seen[0][0, -1]
        return torch.stack([states[one] for one in read])


def _session_info(world: World, sources: Sequence[Sequence[int]], max_gamma: int) -> SessionInfo:
    return SessionInfo(
        batch_size=len(sources),
        vocab_size=world.target.vocab_size,
        capacity=CAPACITY,
        max_gamma=max_gamma,
        device=world.target.device,
        sources=sources if world.encoder_decoder else None,
    )


def _no_proposal(proposal: object, batch: int, vocab: int) -> tuple[str, str, str] | None:
    """Return what was given, what is wanted and what to do, where something is no proposal for a batch."""
    try:
        # Whether the budget was kept is for another check to say.
        endless = (1 << 30,) * batch
        if isinstance(proposal, Proposal) and len(proposal.lengths) != batch:
            raise PluginError(f"its lengths are {_list(proposal.lengths)}; there are {batch} rows.")
        check_form(proposal, endless, vocab)
    except PluginError as error:
        return str(error), f"a Proposal for {batch} row(s), with tokens [B, K] int64 and a q that fits them", ""
    return None


def _rows(rows: Sequence[Sequence[int]]) -> str:
    """Return rows of tokens as text; of many, the first."""
    shown = ", ".join(map(_list, rows[:4]))
    return f"[{shown}{f', ... ({len(rows)} rows)' if len(rows) > 4 else ''}]"


def _list(values: Sequence[object]) -> str:
    """Return values as text; of many, the last."""
    shown = [str(value) for value in values[-12:]]
    return f"[{', '.join(['...'] * (len(values) > 12) + shown)}]"
