"""Bases of drafters: a function from tokens to the next ones, or to their logits, or other drafters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.interface.drafter import Drafter, DraftRequest, DraftSession, SessionInfo, TargetInfo
from specdec_core.interface.errors import PluginError, shortened
from specdec_core.interface.proposal import Proposal

if TYPE_CHECKING:
    from torch import Tensor


class DeterministicDrafter(Drafter):
    """A drafter that proposes the same tokens after the same prefix. Implement `draft`; nothing else is needed.

    Its q is a point mass: a draft token x is accepted with probability p(x), and the residual is p without x.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "continuations" in vars(cls) and "drafts_trees" not in vars(cls):
            cls.drafts_trees = True

    @abstractmethod
    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        """Return at most `budget` tokens expected to follow `tokens`; an empty sequence is legal."""

    def continuations(self, tokens: Sequence[int], budget: int, depth: int) -> Sequence[Sequence[int]]:  # noqa: ARG002
        """Return several drafts that may follow `tokens`, the most likely first. Override it to draft trees.

        It is called instead of `draft` where a gamma controller asks for a tree. Drafts that begin alike share
        their nodes, and those that do not fit are cut.

        Args:
            tokens: The committed tokens.
            budget: The maximum number of tokens of all drafts together, where shared ones count once.
            depth: The maximum number of tokens of each.
        """
        return [self.draft(tokens, depth)]

    def open(self, session: SessionInfo) -> DraftSession:  # noqa: ARG002  (others need it)
        """Start a batch; nothing is kept between steps."""
        return _DeterministicSession(self)


class _DeterministicSession(DraftSession):
    def __init__(self, drafter: DeterministicDrafter) -> None:
        self._drafter = drafter

    def propose(self, request: DraftRequest) -> Proposal:
        if request.tree is not None:
            return self._propose_tree(request)
        pairs = zip(request.tokens, request.budget, strict=True)
        rows = [self._drafter.draft(row, n) if n else () for row, n in pairs]
        try:
            return Proposal.from_rows(rows)
        except _NO_IDS as error:
            wrong = _first_refused(rows, lambda row: Proposal.from_rows([row]))
            raise PluginError(
                f"{type(self._drafter).__name__}.draft returned {wrong}; it must return at most "
                "`budget` token ids, such as [5, 2], and [] where it has no draft."
            ) from error

    def _propose_tree(self, request: DraftRequest) -> Proposal:
        asked = zip(request.tokens, request.budget, request.depth, strict=True)
        rows = [self._drafter.continuations(row, n, depth) if n else () for row, n, depth in asked]
        try:
            return Proposal.from_continuations(rows, request.budget, request.depth)
        except _NO_IDS as error:
            wrong = _first_refused(rows, lambda row: Proposal.from_rows(list(row)))
            raise PluginError(
                f"{type(self._drafter).__name__}.continuations returned {wrong}; it must "
                "return sequences of token ids, such as [[5, 2], [3]], and [] where it has no draft."
            ) from error


class AutoregressiveDrafter(Drafter):
    """A drafter that scores the next token after a prefix. Implement `logits`; nothing else is needed.

    The core applies the sampling settings, draws the token and records q. It drafts trees, too.
    """

    drafts_trees: bool = True
    autoregressive: bool = True

    @abstractmethod
    def logits(self, prefix: Sequence[int]) -> Tensor:
        """Return the logits `[V]` of the token that follows `prefix`."""

    def open(self, session: SessionInfo) -> DraftSession:  # noqa: ARG002  (others need it)
        """Start a batch; nothing is kept between steps."""
        return _AutoregressiveSession(self)


class _AutoregressiveSession(DraftSession):
    def __init__(self, drafter: AutoregressiveDrafter) -> None:
        self._drafter = drafter

    def propose(self, request: DraftRequest) -> Proposal:
        import torch

        if request.tree is not None:
            return draw_tree(request, self._scored)
        prefixes = [list(row) for row in request.tokens]
        ends = [len(row) + n for row, n in zip(prefixes, request.budget, strict=True)]
        while request.wants_more():
            pairs = zip(prefixes, ends, strict=True)
            scored = [self._scored(row) if len(row) < end else None for row, end in pairs]
            unused = torch.zeros_like(next(one for one in scored if one is not None))
            drawn = request.sample(torch.stack([unused if one is None else one for one in scored]))
            for prefix, token in zip(prefixes, drawn.tolist(), strict=True):
                prefix.append(token)
        return request.proposal()

    def _scored(self, prefix: Sequence[int]) -> Tensor:
        """Return the logits `[V]` after a prefix."""
        import torch

        scored = self._drafter.logits(prefix)
        if not isinstance(scored, torch.Tensor):
            raise PluginError(
                f"{type(self._drafter).__name__}.logits returned {shortened(repr(scored), 60)}; it must return "
                "a float tensor [V]: a number for each token id."
            )
        return scored


class CompositeDrafter(Drafter):
    """A drafter that passes its requests on to others.

    It declares what they declare: it needs the hidden states that one of them needs, has the `max_length` of the
    one that drafts longest, and remembers if one of them does. Set an attribute after `super().__init__` where it
    differs. Whether it drafts trees, and is autoregressive, depends on how requests are passed on; it says so
    itself.

    Args:
        config: Its validated settings.
        target: The target it drafts for.
        drafters: The others, at least one.

    Attributes:
        drafters: The others.
    """

    def __init__(self, config: Any, target: TargetInfo, drafters: Sequence[Drafter]) -> None:
        super().__init__(config, target)
        self.drafters = tuple(drafters)
        self.hidden_layers = sorted({layer for one in drafters for layer in one.hidden_layers})
        self.drafts_by_budget = any(one.drafts_by_budget for one in drafters)
        self.remembers = any(one.remembers for one in drafters)
        limits = [one.max_length for one in drafters]
        self.max_length = None if None in limits else max(limit for limit in limits if limit is not None)

    def reset(self) -> None:
        """Have each of the others forget what requests taught."""
        for drafter in self.drafters:
            drafter.reset()


def draw_tree(
    request: DraftRequest, score: Callable[[list[int]], Tensor], *, memory: int | None = None
) -> Proposal:
    """Draw the tree that a request asks for, with a function that scores the next token after a prefix.

    Args:
        request: The request; its `tree` is not None.
        score: Takes the tokens before a node; returns the logits `[V]` of the node.
        memory: How many last tokens `score` is given; None for all.
    """
    import torch

    def seen(tokens: Sequence[int]) -> list[int]:
        return list(tokens if memory is None else tokens[max(len(tokens) - memory, 0) :])

    # The prefixes of each sequence: after the committed tokens, then after each of its nodes.
    paths = [[seen(row)] if n else [] for row, n in zip(request.tokens, request.budget, strict=True)]
    last = [list(row) for row in paths]
    while request.wants_more():
        scored = [list(map(score, prefixes)) for prefixes in last]
        unused = torch.zeros_like(next(logits for row in scored for logits in row))
        width = max(map(len, scored))
        drawn = request.branch(torch.stack([torch.stack(row + [unused] * (width - len(row))) for row in scored]))
        levels = zip(paths, drawn.tokens.tolist(), drawn.parents.tolist(), drawn.lengths, strict=True)
        last = [
            [seen([*row[parent + 1], token]) for token, parent in zip(tokens[:n], parents[:n], strict=True)]
            for row, tokens, parents, n in levels
        ]
        for row, new in zip(paths, last, strict=True):
            row += new
    return request.proposal()


_NO_IDS = (TypeError, ValueError, RuntimeError, OverflowError)
"""The exceptions of building a proposal where something is not a token id."""


def _first_refused(rows: Sequence[Any], build: Callable[[Any], object]) -> str:
    """Return the first of some rows of which a proposal cannot be built, as text."""
    for row in rows:
        try:
            build(row)
        except _NO_IDS:
            return shortened(repr(row), 60)
    return shortened(repr(rows), 60)
