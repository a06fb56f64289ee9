"""The chain drafter: falls back to the next drafter when one has no draft."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from specdec_core.decoding import check_form, failure_text
from specdec_core.interface import (
    CompositeDrafter,
    Dense,
    Drafter,
    DraftRequest,
    DraftSession,
    Outcome,
    PluginError,
    PointMass,
    Proposal,
    SessionInfo,
    Sparse,
    TargetInfo,
)
from specdec_core.interface.proposal import Distribution
from specdec_core.models import moved, uploaded
from specdec_core.verification import dense
from specdec_drafters.common.draft_model_loading import make_nested
from specdec_drafters.settings import ChainConfig

T = TypeVar("T")


class ChainDrafter(CompositeDrafter):
    """Asks its drafters in order, sequence by sequence, until one has a draft; all of them see every commit.

    A draft whose q is a point mass may be replaced if it is shorter than `min_draft_tokens`. A sampled draft is
    never replaced because of its length: its length may depend on what was sampled, since a confidence controller
    stops where q(x) is small. Accepting only long drafts would select among the samples, the rest would no longer
    be distributed as q, and the acceptance test, which divides by q, would not produce p. (If x is passed on with
    probability k(x), it is distributed as norm(k q), and P(x) of appendix A.1 is no longer p(x).) A point mass has
    no such problem: x is accepted with probability p(x) and the residual is p without x, which gives p
    for every x, however x was chosen.

    In Python, the settings may contain drafters instead of settings of drafters.

    References:
        Requested in vLLM issue 24344 and llama.cpp issue 23184. Exactness: appendix A.1 of arXiv 2211.17192.
    """

    def __init__(self, config: ChainConfig, target: TargetInfo) -> None:
        members = [make_nested("drafter", member, target, "chain") for member in config.drafters]
        super().__init__(config, target, members)
        self.names = tuple(map(_name, config.drafters))
        # With a budget below `min_draft_tokens` a shorter draft is enough.
        self.drafts_by_budget = self.drafts_by_budget or config.min_draft_tokens > 1

    def ready(self, hidden_states: Mapping[int, Tensor]) -> bool:
        """Return whether any of its drafters can be asked."""
        return any(one.ready(hidden_states) for one in self.drafters)

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch for every member; if one fails, close the others again."""
        with ExitStack() as opened:
            members = []
            for index, (name, drafter) in enumerate(zip(self.names, self.drafters, strict=True)):
                label = f"{name!r} (drafters[{index}])"
                own = _call(label, "open", partial(drafter.open, session))
                opened.callback(own.close)
                members.append(_Member(label, drafter, own))
            opened.pop_all()
        return _ChainSession(members, self.config.min_draft_tokens, session)


@dataclass(frozen=True)
class _Member:
    """One drafter of a chain, and its session."""

    label: str
    drafter: Drafter
    session: DraftSession


class _ChainSession(DraftSession):
    """One batch.

    Attributes:
        replaceable: For each row of the last proposal, whether a chain around this one may replace the draft
            because of its length.

    `_source[b]` is the index of the member whose draft was last proposed for row b, or None.
    """

    def __init__(self, members: Sequence[_Member], min_draft_tokens: int, session: SessionInfo) -> None:
        self._members = members
        self._min_draft_tokens = min_draft_tokens
        self._vocab_size, self._note = session.vocab_size, session.note
        self._device = torch.device(session.device)
        self._source: list[int | None] = [None] * session.batch_size
        self.replaceable: list[bool] = []

    def propose(self, request: DraftRequest) -> Proposal:
        batch = len(request.budget)
        chosen: list[int | None] = [None] * batch
        fallback: list[int | None] = [None] * batch  # the longest draft that is too short
        proposals: dict[int, Proposal] = {}
        replaceable: dict[int, list[bool]] = {}
        for index, member in enumerate(self._members):
            if not member.drafter.ready(request.hidden_states):
                continue
            left = [n if source is None else 0 for n, source in zip(request.budget, chosen, strict=True)]
            if not any(left):
                break
            budget = member.drafter.clipped(request.tokens, left, self._note)
            proposals[index] = self._ask(member, request.fork(budget))
            replaceable[index] = _replaceable(member.session, proposals[index])
            for row, length in enumerate(proposals[index].lengths):
                enough = min(self._min_draft_tokens, request.budget[row]) if replaceable[index][row] else 1
                if length >= enough and budget[row]:
                    chosen[row] = index
                elif length > _length(proposals, fallback[row], row):
                    fallback[row] = index
        self._source = [second if first is None else first for first, second in zip(chosen, fallback, strict=True)]
        self.replaceable = [source is None or replaceable[source][row] for row, source in enumerate(self._source)]
        return self._merge(proposals)

    def _ask(self, member: _Member, request: DraftRequest) -> Proposal:
        def proposed() -> Proposal:
            return check_form(member.session.propose(request), request.budget, self._vocab_size)

        return _call(member.label, "propose", proposed)

    def _merge(self, proposals: Mapping[int, Proposal]) -> Proposal:
        used = sorted({source for source in self._source if source is not None})
        if len(used) == 1:
            return proposals[used[0]]  # the same object, so that the core recognizes its own samples
        rows = {index: tuple(row for row, source in enumerate(self._source) if source == index) for index in used}
        parts = {rows[index]: proposals[index] for index in used}
        return combine(parts, len(self._source), self._vocab_size, self._device)

    def commit(self, outcome: Outcome) -> None:
        """Pass the outcome to every member; drafted and accepted counts only for rows with the member's draft."""
        for index, member in enumerate(self._members):
            own = [source == index for source in self._source]
            part = replace(
                outcome,
                drafted=tuple(n if mine else 0 for n, mine in zip(outcome.drafted, own, strict=True)),
                accepted=tuple(n if mine else 0 for n, mine in zip(outcome.accepted, own, strict=True)),
            )
            _call(member.label, "commit", partial(member.session.commit, part))

    def rollback(self, lengths: Sequence[int]) -> None:
        """Roll back every member."""
        for member in self._members:
            _call(member.label, "rollback", partial(member.session.rollback, lengths))

    def close(self) -> None:
        """Close every member, even if one of them fails."""
        with ExitStack() as closing:
            for member in self._members:
                closing.callback(_call, member.label, "close", member.session.close)


def _name(member: Any) -> str:
    return str(getattr(member, "name", type(member).__name__))


def _call(label: str, method: str, function: Callable[[], T]) -> T:
    """Call into a member; errors name it."""
    try:
        return function()
    except Exception as error:
        raise PluginError(f"{label} failed in {method}(): {failure_text(error)}") from error


def _replaceable(session: DraftSession, proposal: Proposal) -> list[bool]:
    """Return for each row whether its draft may be replaced because of its length; see `ChainDrafter`."""
    if isinstance(session, _ChainSession):
        # The form of the merged q depends on the other rows; whether a row is replaced must not.
        return session.replaceable
    return [isinstance(proposal.q, PointMass)] * len(proposal.lengths)


def _length(proposals: Mapping[int, Proposal], index: int | None, row: int) -> int:
    return 0 if index is None else proposals[index].lengths[row]


def combine(
    parts: Mapping[tuple[int, ...], Proposal], batch_size: int, vocab_size: int, device: torch.device
) -> Proposal:
    """Merge rows of several proposals into one.

    q stays a point mass if all are, and sparse if all are sparse or point masses; otherwise it becomes dense.

    Args:
        parts: The proposals, by the indices of the rows taken from each: at least one row, none twice, and none
            with an empty draft. All other rows get an empty draft.
        batch_size: B.
        vocab_size: V.
        device: Device of the result.
    """
    taken = {rows: _taken(proposal, rows, device) for rows, proposal in parts.items()}
    width = max((part.longest for part in taken.values()), default=0)
    tokens = torch.zeros(batch_size, width, dtype=torch.long, device=device)
    lengths = [0] * batch_size
    for rows, part in taken.items():
        tokens[uploaded(rows, device), : part.longest] = part.tokens
        for row, length in zip(rows, part.lengths, strict=True):
            lengths[row] = length
    forms = {type(part.q) for part in taken.values()}
    q: Distribution
    if forms <= {PointMass}:
        q = PointMass()
    elif Dense in forms:
        q = Dense(torch.zeros(batch_size, width, vocab_size, device=device))
        for rows, part in taken.items():
            drafted = part.tokens.clamp(0, vocab_size - 1)
            own = dense(_legal(part.q, vocab_size), drafted, vocab_size)
            q.probabilities[uploaded(rows, device), : part.longest] = own.to(q.probabilities.dtype)
    else:
        q = _combined_sparse(taken, tokens)
    return Proposal(tokens, tuple(lengths), q)


def _taken(proposal: Proposal, rows: Sequence[int], device: torch.device) -> Proposal:
    """Return a proposal of some rows alone, cut to the longest of their drafts, on a device."""
    lengths = tuple(proposal.lengths[row] for row in rows)
    q = proposal.q

    def cut(part: Tensor) -> Tensor:
        return moved(part[uploaded(rows, part.device), : max(lengths)], device)

    if isinstance(q, Dense):
        q = Dense(cut(q.probabilities))
    elif isinstance(q, Sparse):
        q = Sparse(cut(q.ids), cut(q.probabilities))
    return Proposal(cut(proposal.tokens), lengths, q)


def _combined_sparse(taken: Mapping[tuple[int, ...], Proposal], tokens: Tensor) -> Sparse:
    widest = max(part.q.ids.shape[2] for part in taken.values() if isinstance(part.q, Sparse))
    ids = tokens[..., None].repeat(1, 1, max(widest, 1))  # [B, K, S]
    weights = torch.zeros(ids.shape, device=tokens.device)
    for rows, part in taken.items():
        at, q = (uploaded(rows, ids.device), slice(part.longest)), part.q
        if isinstance(q, Sparse):
            columns = q.ids.shape[2]
            # Unused columns repeat an id of the distribution, with weight 0.
            ids[at] = q.ids[..., :1].to(ids.dtype)
            ids[(*at, slice(columns))] = q.ids.to(ids.dtype)
            weights[(*at, slice(columns))] = q.probabilities.to(weights.dtype)
        else:
            weights[(*at, 0)] = 1.0
    return Sparse(ids, weights)


def _legal(q: Distribution, vocab_size: int) -> Distribution:
    """Return q with ids inside the vocabulary; those outside get NaN, which the core rejects."""
    if isinstance(q, (PointMass, Dense)):
        return q
    outside = (q.ids < 0) | (q.ids >= vocab_size)
    weights = q.probabilities.masked_fill(outside, float("nan"))
    return replace(q, ids=q.ids.clamp(0, vocab_size - 1), probabilities=weights)
