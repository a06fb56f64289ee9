"""Drafters and controllers without a defect. Each defective one is one of these with one thing gone wrong."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from specdec_core.border import (
    BatchInfo,
    Capabilities,
    Drafter,
    DraftRequest,
    DraftSession,
    GammaController,
    GammaSession,
    LenienceConfig,
    LenienceController,
    LenienceSession,
    Outcome,
    PluginConfig,
    Proposal,
    SessionInfo,
    StepReport,
    TargetInfo,
)

PLACES = 16
"""Contexts that the toys tell apart."""


class SizeConfig(PluginConfig):
    """One setting, for those who change it."""

    most: int = 4
    """The most tokens."""


def context(tokens: Sequence[int]) -> int:
    """Return a number that depends on every token and on its place, so that a wrong prefix shows."""
    return sum((place + 1) * (token + 1) for place, token in enumerate(tokens)) % PLACES


class Toy(Drafter):
    """A drafter with a table of random logits, one row a context."""

    Config = SizeConfig

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(SizeConfig(), target)
        numbers = torch.Generator().manual_seed(3)
        self.table = torch.randn(PLACES, target.vocab_size, generator=numbers) * 1.5

    def logits(self, prefix: Sequence[int]) -> Tensor:
        """Return the logits `[V]` of the token that follows."""
        return self.table[context(prefix)]

    def all_logits(self, prefixes: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits `[B, V]` of the tokens that follow."""
        return torch.stack([self.logits(prefix) for prefix in prefixes])


class Stateless(Toy):
    """A drafter whose session keeps nothing: `propose` is a function of the request."""

    @abstractmethod
    def propose(self, request: DraftRequest) -> Proposal:
        """Return the draft."""

    def open(self, session: SessionInfo) -> DraftSession:
        return StatelessSession(self)


class StatelessSession(DraftSession):
    """Passes requests on."""

    def __init__(self, drafter: Stateless) -> None:
        self.drafter = drafter

    def propose(self, request: DraftRequest) -> Proposal:
        return self.drafter.propose(request)


class Sampling(Stateless):
    """Draws its drafts through the request, token by token."""

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
        """Return the proposal; `logits` `[B, K, V]` are those the tokens were drawn from."""
        return made


class Guessing(Stateless):
    """Always guesses the same after the same tokens: the next numbers."""

    def propose(self, request: DraftRequest) -> Proposal:
        pairs = zip(request.tokens, request.budget, strict=True)
        return Proposal.from_rows([self.guess(row, budget) for row, budget in pairs])

    def guess(self, tokens: Sequence[int], budget: int) -> list[int]:
        """Return at most `budget` guesses."""
        return [(tokens[-1] + 1 + n) % self.target.vocab_size for n in range(budget)]


class Cached(Toy):
    """Keeps what it has read, as a model with a cache does: prompt first, then what is committed."""

    def open(self, session: SessionInfo) -> DraftSession:
        return CachedSession(self, session.batch_size)


class CachedSession(DraftSession):
    """The tokens that a batch has read; drafted ones stand at the end until they are committed or not."""

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
        if not any(self.rows):
            return  # nothing was read yet, and the first request brings all tokens
        for index in range(len(self.rows)):
            self.keep(index, outcome)
        self.begin = [len(row) for row in self.rows]

    def keep(self, index: int, outcome: Outcome) -> None:
        """Take what was drafted out of a row, and what was committed in."""
        del self.rows[index][self.begin[index] :]
        self.rows[index] += outcome.committed[index]

    def rollback(self, lengths: Sequence[int]) -> None:
        for row, length in zip(self.rows, lengths, strict=True):
            del row[length:]
        self.begin = [len(row) for row in self.rows]


class Hidden(Stateless):
    """Draws from the target's hidden state, one row at a time, and declares both."""

    needs_hidden_states = True
    declares: ClassVar[Capabilities] = Capabilities(max_batch=1, needs_hidden_states=True)

    def propose(self, request: DraftRequest) -> Proposal:
        if request.hidden is None:
            return Proposal.empty(len(request.budget))
        assert self.target.features is not None
        logits = self.read(request.hidden) @ self.target.features.output_embeddings.T
        while request.wants_more():
            request.sample(logits)
        return request.proposal()

    def read(self, hidden: Tensor) -> Tensor:
        """Return the states to draw from, `[B, D]`."""
        return hidden


class Following(GammaController):
    """Asks for one token more than were accepted last time, row by row."""

    Config = SizeConfig

    def __init__(self) -> None:
        super().__init__(SizeConfig())

    @property
    def max_gamma(self) -> int:
        return int(self.config.most)

    def open(self, batch: BatchInfo) -> GammaSession:
        return FollowingSession(self, batch)


class FollowingSession(GammaSession):
    """A gamma a row."""

    def __init__(self, controller: Following, batch: BatchInfo) -> None:
        self.controller, self.batch = controller, batch
        self.gammas = [1] * batch.batch_size

    def gamma(self) -> Sequence[int]:
        return self.gammas

    def observe(self, report: StepReport) -> None:
        self.gammas = [min(accepted + 1, self.controller.max_gamma) for accepted in report.accepted]


class Confident(Following):
    """Stops a draft behind a token of which the drafter was not sure."""

    def open(self, batch: BatchInfo) -> GammaSession:
        return ConfidentSession(self, batch)


class ConfidentSession(FollowingSession):
    """Asks for the most, and watches."""

    watches_confidence = True

    def gamma(self) -> Sequence[int]:
        return [self.controller.max_gamma] * self.batch.batch_size

    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        return [value >= 0.3 for value in confidence]


class Lenient(LenienceController):
    """Judges the more leniently the more draft tokens were refused; each row by itself."""

    Config = LenienceConfig

    def __init__(self, config: LenienceConfig | None = None) -> None:
        super().__init__(config or LenienceConfig())

    def open(self, batch: BatchInfo) -> LenienceSession:
        return LenientSession(self, batch)


class LenientSession(LenienceSession):
    """An l a row."""

    def __init__(self, controller: Lenient, batch: BatchInfo) -> None:
        self.controller, self.batch = controller, batch
        self.values = [1.0] * batch.batch_size

    def lenience(self) -> Sequence[float | Sequence[float]]:
        return self.values

    def observe(self, report: StepReport) -> None:
        for row in range(self.batch.batch_size):
            self.learn(row, report)

    def learn(self, row: int, report: StepReport) -> None:
        """Take in what became of a row."""
        refused = report.judged[row] > report.accepted[row]
        self.values[row] = max(self.values[row] * (0.8 if refused else 1.0), 0.3)


class Strict(Lenient):
    """Says that it is lossless, and is."""

    def __init__(self) -> None:
        super().__init__(LosslessConfig())

    def open(self, batch: BatchInfo) -> LenienceSession:
        return StrictSession(self, batch)


class StrictSession(LenientSession):
    """Always 1."""

    def learn(self, row: int, report: StepReport) -> None:
        return


class LosslessConfig(LenienceConfig):
    """Promises that l is 1 whatever happens."""

    @property
    def lossless(self) -> bool:
        return True
