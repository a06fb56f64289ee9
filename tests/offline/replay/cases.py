"""Drafters with a q that is known after every text, small enough to enumerate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from specdec_core.interface import Candidates, DeterministicDrafter, PluginConfig, Proposal, Sparse
from specdec_core.interface.drafter import Drafter, DraftRequest, DraftSession, SessionInfo, TargetInfo
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import LoadedModel
from specdec_core.testing.harness.tiny_target import uncached_logits
from specdec_core.testing.harness.toys import Gamma, Hierarchy, TableDrafter
from specdec_drafters.chain import ChainDrafter
from specdec_drafters.settings import ChainConfig
from tests.offline.replay.support import QOf, probabilities, small_target

VOCAB = 4
INFO = TargetInfo(vocab_size=VOCAB)


@dataclass
class Case:
    """A drafter, and the q that it has after committed tokens and a draft."""

    drafter: Drafter
    q_of: QOf


class _Session(DraftSession):
    def __init__(self, propose: Callable[[DraftRequest], Proposal]) -> None:
        self._propose = propose

    def propose(self, request: DraftRequest) -> Proposal:
        return self._propose(request)


class Proposing(Drafter):
    """Drafts what a function says."""

    def __init__(
        self, propose: Callable[[DraftRequest], Proposal], info: TargetInfo = INFO, *, autoregressive: bool = False
    ) -> None:
        super().__init__(PluginConfig(), info)
        self._propose = propose
        self.autoregressive = autoregressive

    def open(self, session: SessionInfo) -> DraftSession:
        return _Session(self._propose)


def _autoregressive(sampling: SamplingSettings) -> Case:
    drafter = TableDrafter(VOCAB)
    return Case(drafter, lambda prefix, draft: probabilities(drafter.table[(*prefix, *draft)[-1]], sampling))


def _table(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, VOCAB, generator=torch.Generator().manual_seed(seed)) * 1.5


def _heads(sampling: SamplingSettings) -> Case:
    """Each token depends on the last committed one and its position in the draft; at most 3 of them."""
    table = _table(4, 3, VOCAB)

    def propose(request: DraftRequest) -> Proposal:
        last = [row[-1] for row in request.tokens]
        for position in range(3):
            if request.wants_more():
                request.sample(table[position, last])
        return request.proposal()

    def q_of(prefix: tuple[int, ...], draft: tuple[int, ...]) -> Any:
        return None if len(draft) == 3 else probabilities(table[len(draft), prefix[-1]], sampling)

    return Case(Proposing(propose), q_of)


COPIES = (0, 2, 1, 3)
"""Number of tokens that a copier drafts after each token."""


class _Copier(DeterministicDrafter):
    """Drafts 0 to 3 tokens, as many as the last token says; they depend on all tokens before."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        return [(sum(tokens) + position) % VOCAB for position in range(min(budget, COPIES[tokens[-1]]))]


def _deterministic(sampling: SamplingSettings) -> Case:
    def q_of(prefix: tuple[int, ...], draft: tuple[int, ...]) -> int | None:
        return None if len(draft) >= COPIES[prefix[-1]] else (sum(prefix) + len(draft)) % VOCAB

    return Case(_Copier(PluginConfig(), INFO), q_of)


def _sparse(sampling: SamplingSettings) -> Case:
    """q on two ids, handed over in another form than it was drawn in, whatever the sampling settings are."""

    def weights(token: int) -> torch.Tensor:
        q = torch.zeros(VOCAB)
        q[token], q[(token + 2) % VOCAB] = 0.3, 0.7
        return q

    def propose(request: DraftRequest) -> Proposal:
        last = torch.tensor([row[-1] for row in request.tokens])
        ids, drawn = [], []
        while request.wants_more():
            drawn.append(torch.stack([weights(int(token)) for token in last]))
            ids.append(torch.stack([last, (last + 2) % VOCAB], dim=1))
            last = request.draw(drawn[-1])
        made = request.proposal()
        if not ids:
            return made
        each = torch.stack(ids, dim=1)
        q = torch.stack(drawn, dim=1).gather(2, each)
        return Proposal(made.tokens, made.lengths, Sparse(each, q))

    return Case(Proposing(propose), lambda prefix, draft: weights((*prefix, *draft)[-1]).double().numpy())


def _candidates(sampling: SamplingSettings) -> Case:
    """One or two candidates after each token: texts hold tokens that are none, to which q gives 0."""
    ids = [[0], [1, 2], [1], [0, 3]]
    rows = [Candidates(np.array(some), np.log(np.array([0.5, 0.3], np.float32))[: len(some)]) for some in ids]

    def propose(request: DraftRequest) -> Proposal:
        last = [row[-1] for row in request.tokens]
        left = list(request.budget)
        while request.wants_more():
            given = [rows[token] if more > 0 else None for token, more in zip(last, left, strict=True)]
            last = request.sample_candidates(given)
            left = [more - 1 for more in left]
        return request.proposal()

    def q_of(prefix: tuple[int, ...], draft: tuple[int, ...]) -> Any:
        row = rows[(*prefix, *draft)[-1]]
        weights = torch.full((VOCAB,), -torch.inf)
        weights[torch.from_numpy(row.ids)] = torch.from_numpy(row.log_weights)
        return probabilities(weights, sampling)

    return Case(Proposing(propose), q_of)


def _chain(sampling: SamplingSettings, min_draft_tokens: int = 1) -> Case:
    """Copies where it can, and draws otherwise: rows of one proposal differ in form."""
    copier, table = _deterministic(sampling), _autoregressive(sampling)
    config = ChainConfig.model_construct(
        drafters=(copier.drafter, table.drafter), min_draft_tokens=min_draft_tokens
    )

    def q_of(prefix: tuple[int, ...], draft: tuple[int, ...]) -> Any:
        return (copier if COPIES[prefix[-1]] else table).q_of(prefix, draft)

    return Case(ChainDrafter(config, INFO), q_of)


def _hierarchy(sampling: SamplingSettings) -> Case:
    middle = small_target(VOCAB, seed=5)

    @cache
    def q(text: tuple[int, ...]) -> Any:
        return probabilities(uncached_logits(middle, [list(text)])[0, -1], sampling)

    drafter = Hierarchy(middle, TableDrafter(VOCAB), Gamma(2))
    drafter.autoregressive = True
    return Case(drafter, lambda prefix, draft: q((*prefix, *draft)))


CASES = {
    "autoregressive": _autoregressive,
    "heads": _heads,
    "deterministic": _deterministic,
    "sparse": _sparse,
    "candidates": _candidates,
    "chain": _chain,
    "hierarchy": _hierarchy,
}
SAMPLINGS = {
    "greedy": SamplingSettings(temperature=0),
    "0.7": SamplingSettings(temperature=0.7),
    "1": SamplingSettings(),
    "top-p": SamplingSettings(top_p=0.8),
}


@cache
def target() -> LoadedModel:
    return small_target(VOCAB)


class Replacing:
    """q of a chain that replaces copies of fewer than 2 tokens, unless no more are asked for."""

    def __init__(self, copied: QOf, drawn: QOf, gamma: int) -> None:
        self._copied, self._drawn, self._gamma = copied, drawn, gamma

    def __call__(self, prefix: tuple[int, ...], draft: tuple[int, ...]) -> Any:
        budget = min(self._gamma, 5 - (len(prefix) - 4) - 1)
        copies = COPIES[prefix[-1]] >= min(2, budget)
        return (self._copied if copies else self._drawn)(prefix, draft)
