"""Drafters and controllers without a defect. The defective ones derive from these."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from specdec_core.interface import LAST_HIDDEN, Drafter, DraftRequest, DraftSession, SessionInfo, TargetInfo
from specdec_core.interface.base_drafters import draw_tree
from specdec_core.interface.controllers import (
    BatchInfo,
    GammaController,
    GammaSession,
    LenienceController,
    LenienceSession,
)
from specdec_core.interface.outcome import Outcome, StepReport
from specdec_core.interface.proposal import Proposal
from specdec_core.interface.spec import LenienceConfig, PluginConfig
from tests.toys import RememberingDrafter


class WithBudget:
    """A request with another budget than the core's."""

    def __init__(self, request: DraftRequest, budget: tuple[int, ...]) -> None:
        self._request, self.budget = request, budget

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class WithTokens:
    """A request with other tokens than the core's."""

    def __init__(self, request: DraftRequest, tokens: Sequence[Sequence[int]]) -> None:
        self._request, self.tokens = request, tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


POSITIONS = 16
"""Number of contexts with logits of their own."""


class SizeConfig(PluginConfig):
    """One setting, for defects that change it."""

    max_gamma: int = 4
    """Maximum number of tokens."""


def context(tokens: Sequence[int]) -> int:
    """Return a number that depends on every token and its position, so that a wrong prefix shows."""
    return sum((position + 1) * (token + 1) for position, token in enumerate(tokens)) % POSITIONS


class Toy(Drafter):
    """A drafter with a table of random logits, one row per context."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(SizeConfig(), target)
        numbers = torch.Generator().manual_seed(3)
        self.table = torch.randn(POSITIONS, target.vocab_size, generator=numbers) * 1.5

    def logits(self, prefix: Sequence[int]) -> Tensor:
        """Return the logits `[V]` of the token that follows."""
        return self.table[context(prefix)]

    def all_logits(self, prefixes: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits `[B, V]` of the tokens that follow."""
        return torch.stack([self.logits(prefix) for prefix in prefixes])


class Stateless(Toy):
    """A drafter without state: `propose` is a function of the request."""

    @abstractmethod
    def propose(self, request: DraftRequest) -> Proposal:
        """Return the draft."""

    def open(self, session: SessionInfo) -> DraftSession:
        return StatelessSession(self)


class StatelessSession(DraftSession):
    """Forwards requests."""

    def __init__(self, drafter: Stateless) -> None:
        self.drafter = drafter

    def propose(self, request: DraftRequest) -> Proposal:
        return self.drafter.propose(request)


class Sampling(Stateless):
    """Samples drafts through the request, token by token."""

    def propose(self, request: DraftRequest) -> Proposal:
        prefixes = [list(row) for row in request.tokens]
        steps: list[Tensor] = []
        while request.wants_more():
            steps.append(self.all_logits(prefixes))
            for prefix, token in zip(prefixes, request.sample(steps[-1]).tolist(), strict=True):
                prefix.append(token)
        made = request.proposal()
        return self.hand_back(made, torch.stack(steps, dim=1)) if steps else made

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        """Return the proposal; `logits` `[B, K, V]` are those that the tokens were sampled from."""
        return made


class Branching(Sampling):
    """Draws trees as well, node by node."""

    drafts_trees = True

    def propose(self, request: DraftRequest) -> Proposal:
        return self.draft(request.tokens, request)

    def draft(self, rows: Sequence[Sequence[int]], request: DraftRequest) -> Proposal:
        """Return the draft after some tokens, which should be those of the request."""
        asked = WithTokens(request, rows)
        return super().propose(asked) if request.tree is None else draw_tree(asked, self.logits)


class Deterministic(Stateless):
    """Proposes the next numbers: the same tokens after the same context."""

    def propose(self, request: DraftRequest) -> Proposal:
        pairs = zip(request.tokens, request.budget, strict=True)
        return Proposal.from_rows([self.continuation(row, budget) for row, budget in pairs])

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        """Return `budget` tokens."""
        return [(tokens[-1] + 1 + n) % self.target.vocab_size for n in range(budget)]


class Cached(Toy):
    """Keeps the tokens that it has read, like a model with a cache."""

    def open(self, session: SessionInfo) -> DraftSession:
        return CachedSession(self, session.batch_size)

    def commit(self, session: CachedSession, outcome: Outcome) -> None:
        """Update the rows of a session."""
        for index in range(len(session.rows)):
            self.keep(session.rows[index], session.begin[index], index, outcome)

    def keep(self, row: list[int], begin: int, index: int, outcome: Outcome) -> None:
        """Replace a row's draft tokens, which begin at `begin`, by the committed ones."""
        row[begin:] = outcome.committed[index]

    def rollback(self, session: CachedSession, lengths: Sequence[int]) -> None:
        """Cut the rows of a session."""
        for row, length in zip(session.rows, lengths, strict=True):
            del row[length:]


class CachedSession(DraftSession):
    """The tokens read in each row; draft tokens stay at the end until a commit."""

    def __init__(self, drafter: Cached, batch_size: int) -> None:
        self.drafter = drafter
        self.rows: list[list[int]] = [[] for _ in range(batch_size)]
        self.begin = [0] * batch_size

    def propose(self, request: DraftRequest) -> Proposal:
        for row, tokens in zip(self.rows, request.tokens, strict=True):
            if not row:
                row += tokens  # from here on, commits bring what is new
        self.begin = [len(row) for row in self.rows]
        while request.wants_more():
            drawn = request.sample(self.drafter.all_logits(self.rows))
            for row, token in zip(self.rows, drawn.tolist(), strict=True):
                row.append(token)
        return request.proposal()

    def commit(self, outcome: Outcome) -> None:
        if any(self.rows):  # else nothing was read yet, and the first request brings all tokens
            self.drafter.commit(self, outcome)
            self.begin = [len(row) for row in self.rows]

    def rollback(self, lengths: Sequence[int]) -> None:
        self.drafter.rollback(self, lengths)
        self.begin = [len(row) for row in self.rows]


class Hidden(Stateless):
    """Samples from the target's hidden state, one row at a time, and declares both."""

    hidden_layers = (LAST_HIDDEN,)
    declares: ClassVar[dict[str, object]] = {"needs_hidden_states": True}

    def propose(self, request: DraftRequest) -> Proposal:
        assert self.target.features is not None
        logits = self.read(request.hidden_states[LAST_HIDDEN]) @ self.target.features.output_embeddings.T
        while request.wants_more():
            request.sample(logits)
        return request.proposal()

    def read(self, hidden: Tensor) -> Tensor:
        """Return the states to sample from, `[B, D]`."""
        return hidden


class Following(GammaController):
    """Drafts one token more than were accepted last time, row by row."""

    uses_confidence = False

    def __init__(self) -> None:
        super().__init__(SizeConfig())

    @property
    def max_gamma(self) -> int:
        return int(self.config.max_gamma)

    def open(self, batch: BatchInfo) -> GammaSession:
        return FollowingSession(self, batch)

    def plan(self, session: FollowingSession) -> Any:
        """Return the gammas of a session's rows."""
        return session.gammas

    def keep_drafting(self, confidence: Any) -> Any:
        """Return which rows draft on."""
        return [value >= 0.3 for value in confidence]

    def observe(self, session: FollowingSession, report: StepReport) -> None:
        """Update the gammas of a session's rows."""
        session.gammas = [min(accepted + 1, self.max_gamma) for accepted in report.outcome.accepted]


class FollowingSession(GammaSession):
    """One gamma per row."""

    def __init__(self, controller: Following, batch: BatchInfo) -> None:
        self.controller, self.batch = controller, batch
        self.uses_confidence = controller.uses_confidence
        self.gammas: Any = [1] * batch.batch_size
        self.memory: Any = None

    def plan(self) -> Any:
        return self.controller.plan(self)

    def keep_drafting(self, confidence: Sequence[float]) -> Any:
        return self.controller.keep_drafting(confidence)

    def observe(self, report: StepReport) -> None:
        self.controller.observe(self, report)


class Confident(Following):
    """Asks for `max_gamma`, and stops a draft after a token with small q."""

    uses_confidence = True

    def plan(self, session: FollowingSession) -> Any:
        return [self.max_gamma] * session.batch.batch_size


class Lenient(LenienceController):
    """Becomes more lenient with each rejection, row by row."""

    def __init__(self, config: LenienceConfig | None = None) -> None:
        super().__init__(config or LenienceConfig())

    def open(self, batch: BatchInfo) -> LenienceSession:
        return LenientSession(self, batch)

    def lenience(self, session: LenientSession) -> Any:
        """Return l of a session's rows."""
        return session.values

    def observe(self, session: LenientSession, report: StepReport) -> None:
        """Update l of a session's rows."""
        for row, value in enumerate(session.values):
            session.values[row] = self.learn(row, value, report)

    def learn(self, row: int, value: float, report: StepReport) -> float:
        """Return l of a row after a report."""
        rejected = report.verified[row] > report.outcome.accepted[row]
        return max(value * (0.8 if rejected else 1.0), 0.3)


class LenientSession(LenienceSession):
    """One l per row."""

    def __init__(self, controller: Lenient, batch: BatchInfo) -> None:
        self.controller, self.batch = controller, batch
        self.values: list[float] = [1.0] * batch.batch_size
        self.memory: Any = None

    def lenience(self) -> Any:
        return self.controller.lenience(self)

    def observe(self, report: StepReport) -> None:
        self.controller.observe(self, report)


class Strict(Lenient):
    """Declares that it is lossless, and is."""

    def __init__(self) -> None:
        super().__init__(LosslessConfig())

    def learn(self, row: int, value: float, report: StepReport) -> float:
        return 1.0


class LosslessConfig(LenienceConfig):
    """Declares that l is always 1."""

    @property
    def lossless(self) -> bool:
        return True


class Remembers(RememberingDrafter):
    """Proposes what followed the last token in the latest request that held it."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(target.vocab_size)
        self.target = target
