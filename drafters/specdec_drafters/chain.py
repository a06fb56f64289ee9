"""The chain: ask one drafter, and the next where it has nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from specdec_core.acceptance import dense
from specdec_core.border import (
    Dense,
    Distribution,
    Drafter,
    DraftRequest,
    DraftSession,
    Outcome,
    Overlay,
    PointMass,
    Proposal,
    SessionInfo,
    Sparse,
    TargetInfo,
)
from specdec_core.decoding.checking import check_form
from specdec_core.errors import PluginError
from specdec_drafters.configs import ChainConfig
from specdec_drafters.nested import make_nested

T = TypeVar("T")


class ChainDrafter(Drafter):
    """Asks its drafters in order, row by row, until one has a draft; all are told of every commit.

    A draft whose q is a point mass may be judged by its length, and replaced when it is too short. A drawn one is
    kept, however short it is, for the sake of exactness. Whether a draft is long can depend on what was drawn: a
    confidence controller stops where q(x) is small. Whoever keeps long drafts only selects among the draws; what
    is left is not distributed as q any more, and the acceptance test, which divides by q, would not give p.
    (If x is kept with probability k(x), it is distributed as norm(k q), and P(x) of appendix A.1 is no longer
    p(x).) A point mass is free of this: x is accepted with probability p(x), and the residual is p without x,
    which gives p for every x, however x was chosen.

    In Python, the settings may hold drafters as well as the settings of drafters.

    References:
        Asked for in vLLM issue 24344 and llama.cpp issue 23184. Exactness: appendix A.1 of arXiv 2211.17192.
    """

    Config = ChainConfig

    def __init__(self, config: ChainConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.members: tuple[Drafter, ...] = tuple(
            make_nested("drafter", member, target, "chain") for member in config.drafters
        )
        self.names = tuple(map(_name, config.drafters))
        self.needs_hidden_states = any(member.needs_hidden_states for member in self.members)

    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch for every member; if one cannot, the others are closed again."""
        with ExitStack() as opened:
            members = []
            for place, (name, drafter) in enumerate(zip(self.names, self.members, strict=True)):
                label = f"{name!r} (drafters[{place}])"
                own = _calling(label, "open", partial(drafter.open, session))
                opened.callback(own.close)
                members.append(_Member(label, own))
            opened.pop_all()
        return _ChainSession(members, self.config.shortest, session)


def _name(member: Any) -> str:
    return str(getattr(member, "name", type(member).__name__))


@dataclass(frozen=True)
class _Member:
    """One drafter of a chain, while a batch is decoded."""

    label: str
    session: DraftSession


@dataclass(frozen=True)
class Answer:
    """What a member of a chain proposed, and the rows in which that is taken.

    Attributes:
        proposal: The proposal.
        rows: Indices of rows, at least one, none empty.
    """

    proposal: Proposal
    rows: tuple[int, ...]

    @property
    def width(self) -> int:
        """K, the length of the longest draft taken."""
        return max(self.proposal.lengths[row] for row in self.rows)


def _calling(label: str, what: str, function: Callable[[], T]) -> T:
    """Call into a member; what goes wrong is said with its name."""
    try:
        return function()
    except Exception as error:
        said = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        raise PluginError(f"{label} failed in {what}(): {said}") from error


class _ChainSession(DraftSession):
    """One batch.

    Attributes:
        replaceable: For each row whether the draft proposed last may be taken or left for what it is.

    `_served[b]` is the member whose draft of row b was proposed last, or None.
    """

    def __init__(self, members: Sequence[_Member], shortest: int, session: SessionInfo) -> None:
        self._members = members
        self._shortest = shortest
        self._vocab_size = session.vocab_size
        self._device = torch.device(session.device)
        self._served: list[int | None] = [None] * session.batch_size
        self.replaceable: list[bool] = []

    def propose(self, request: DraftRequest) -> Proposal:
        batch = len(request.budget)
        served: list[int | None] = [None] * batch
        short: list[int | None] = [None] * batch  # whose draft is taken where no other has any
        proposals: list[Proposal] = []
        replaceable: list[list[bool]] = []
        for place, member in enumerate(self._members):
            budget = tuple(n if who is None else 0 for n, who in zip(request.budget, served, strict=True))
            if not any(budget):
                break
            proposals.append(self._ask(member, request.fork(budget)))
            replaceable.append(_may_be_replaced(member.session, proposals[-1]))
            for row, length in enumerate(proposals[-1].lengths):
                enough = min(self._shortest, request.budget[row]) if replaceable[-1][row] else 1
                if length >= enough and budget[row]:
                    served[row] = place
                elif length > _length(proposals, short[row], row):
                    short[row] = place
        self._served = [second if first is None else first for first, second in zip(served, short, strict=True)]
        self.replaceable = [who is None or replaceable[who][row] for row, who in enumerate(self._served)]
        return self._handed_back(proposals)

    def _ask(self, member: _Member, request: DraftRequest) -> Proposal:
        def proposed() -> Proposal:
            return check_form(member.session.propose(request), request.budget, self._vocab_size)

        return _calling(member.label, "propose", proposed)

    def _handed_back(self, proposals: Sequence[Proposal]) -> Proposal:
        taken = sorted({who for who in self._served if who is not None})
        if len(taken) == 1:
            return proposals[taken[0]]  # the very one, so that the core knows what it drew itself
        answers = [
            Answer(proposals[place], tuple(row for row, who in enumerate(self._served) if who == place))
            for place in taken
        ]
        return combine(answers, len(self._served), self._vocab_size, self._device)

    def commit(self, outcome: Outcome) -> None:
        """Tell every member, each of its own rows what was verified, and of all rows what was committed."""
        for place, member in enumerate(self._members):
            own = [outcome.used and who == place for who in self._served]
            told = replace(
                outcome,
                drafted=tuple(n if mine else 0 for n, mine in zip(outcome.drafted, own, strict=True)),
                accepted=tuple(n if mine else 0 for n, mine in zip(outcome.accepted, own, strict=True)),
                used=any(own),
            )
            _calling(member.label, "commit", partial(member.session.commit, told))

    def rollback(self, lengths: Sequence[int]) -> None:
        """Take commits back from every member."""
        for member in self._members:
            if not member.session.can_roll_back:
                raise PluginError(
                    f"{member.label} keeps state (it has a commit()); within a hierarchy it must have a "
                    "rollback(lengths) too."
                )
            _calling(member.label, "rollback", partial(member.session.rollback, lengths))

    def close(self) -> None:
        """Close every member, also when one of them fails at that."""
        with ExitStack() as closing:
            for member in self._members:
                closing.callback(_calling, member.label, "close", member.session.close)


def _may_be_replaced(session: DraftSession, proposal: Proposal) -> list[bool]:
    """Whether the draft of each row may be taken or left for what it is: not if drawn; see `ChainDrafter`."""
    if isinstance(session, _ChainSession):
        # The form of its q depends on who served the other rows, and a row must not.
        return session.replaceable
    return [isinstance(proposal.q, PointMass)] * len(proposal.lengths)


def _length(proposals: Sequence[Proposal], place: int | None, row: int) -> int:
    return 0 if place is None else proposals[place].lengths[row]


def combine(answers: Sequence[Answer], batch_size: int, vocab_size: int, device: torch.device) -> Proposal:
    """Return one proposal of several, whose rows are disjoint.

    q stays a point mass where all are, and sparse where all are one or the other; else it is written out.

    Args:
        answers: Proposals, with the rows that are taken of each; rows in none are empty.
        batch_size: B.
        vocab_size: V.
        device: Where the proposal is wanted.
    """
    width = max((answer.width for answer in answers), default=0)
    tokens = torch.zeros(batch_size, width, dtype=torch.long, device=device)
    lengths = [0] * batch_size
    for answer in answers:
        rows = list(answer.rows)
        tokens[rows, : answer.width] = answer.proposal.tokens[rows, : answer.width].to(device)
        for row in rows:
            lengths[row] = answer.proposal.lengths[row]
    forms = {type(answer.proposal.q) for answer in answers}
    q: Distribution
    if forms <= {PointMass}:
        q = PointMass()
    elif forms <= {PointMass, Sparse}:
        q = _combined_sparse(answers, tokens)
    else:
        q = _combined_dense(answers, tokens, vocab_size)
    return Proposal(tokens, tuple(lengths), q)


def _combined_sparse(answers: Sequence[Answer], tokens: Tensor) -> Sparse:
    most = max(answer.proposal.q.ids.shape[2] for answer in answers if isinstance(answer.proposal.q, Sparse))
    ids = tokens[..., None].repeat(1, 1, max(most, 1))  # [B, K, S]
    weights = torch.zeros(ids.shape, device=tokens.device)
    for answer in answers:
        rows, width = list(answer.rows), answer.width
        q = answer.proposal.q
        if isinstance(q, Sparse):
            places = q.ids.shape[2]
            # Unused places repeat an id that is there.
            ids[rows, :width] = q.ids[rows, :width, :1].to(ids.device)
            ids[rows, :width, :places] = q.ids[rows, :width].to(ids.device)
            weights[rows, :width, :places] = q.probabilities[rows, :width].to(weights)
        else:
            weights[rows, :width, 0] = 1.0
    return Sparse(ids, weights)


def _combined_dense(answers: Sequence[Answer], tokens: Tensor, vocab_size: int) -> Dense:
    q = torch.zeros(*tokens.shape, vocab_size, device=tokens.device)
    for answer in answers:
        rows, width = list(answer.rows), answer.width
        own = _legal(_part(answer.proposal.q, rows, width), vocab_size)
        drafted = answer.proposal.tokens[rows, :width].clamp(0, vocab_size - 1)
        q[rows, :width] = dense(own, drafted, vocab_size).to(q)
    return Dense(q)


def _part(q: Distribution, rows: list[int], width: int) -> Distribution:
    """Return q of some rows, and of the first `width` positions."""
    if isinstance(q, PointMass):
        return q
    if isinstance(q, Dense):
        return Dense(q.probabilities[rows, :width])
    ids, weights = q.ids[rows, :width], q.probabilities[rows, :width]
    return (
        Sparse(ids, weights)
        if isinstance(q, Sparse)
        else Overlay(ids, weights, q.background, q.scale[rows, :width])
    )


def _legal(q: Distribution, vocab_size: int) -> Distribution:
    """Return q with ids that can be written out; where they are none, it is no number, which the core refuses."""
    if isinstance(q, (PointMass, Dense)):
        return q
    outside = (q.ids < 0) | (q.ids >= vocab_size)
    weights = q.probabilities.masked_fill(outside, float("nan"))
    return replace(q, ids=q.ids.clamp(0, vocab_size - 1), probabilities=weights)
