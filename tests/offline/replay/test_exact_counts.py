"""Replayed counts equal what Algorithm 1 counts on average, by enumeration of all texts, drafts and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from specdec_core.interface import (
    Candidates,
    DeterministicDrafter,
    Drafter,
    DraftRequest,
    DraftSession,
    PluginConfig,
    Proposal,
    SamplingSettings,
    SessionInfo,
    Sparse,
    TargetInfo,
)
from specdec_core.models import LoadedModel
from specdec_core.testing.harness.enumeration import adjusted
from specdec_core.testing.harness.tiny_target import uncached_logits
from specdec_core.testing.harness.toys import Gamma, Hierarchy, TableDrafter
from specdec_drafters.chain.config import ChainConfig
from specdec_drafters.chain.drafter import ChainDrafter
from tests.offline.replay.support import (
    QOf,
    all_texts,
    expected_by_enumeration,
    expected_by_replay,
    probabilities,
    replayed,
    require_equal,
    small_target,
)

VOCAB = 4
INFO = TargetInfo(vocab_size=VOCAB)
GAMMAS = range(5)


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


class _Drafter(Drafter):
    def __init__(self, propose: Callable[[DraftRequest], Proposal]) -> None:
        super().__init__(PluginConfig(), INFO)
        self._propose = propose

    def open(self, session: SessionInfo) -> DraftSession:
        return _Session(self._propose)


def _autoregressive(sampling: SamplingSettings) -> Case:
    drafter = TableDrafter(VOCAB)
    return Case(drafter, lambda prefix, draft: probabilities(drafter.table[(*prefix, *draft)[-1]], sampling))


def _table(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, VOCAB, generator=torch.Generator().manual_seed(seed)) * 1.5


def _heads(sampling: SamplingSettings) -> Case:
    """Each token depends on the last committed one and its place in the draft; at most 3 of them."""
    table = _table(4, 3, VOCAB)

    def propose(request: DraftRequest) -> Proposal:
        last = [row[-1] for row in request.tokens]
        for place in range(3):
            if request.wants_more():
                request.sample(table[place, last])
        return request.proposal()

    def q_of(prefix: tuple[int, ...], draft: tuple[int, ...]) -> Any:
        return None if len(draft) == 3 else probabilities(table[len(draft), prefix[-1]], sampling)

    return Case(_Drafter(propose), q_of)


COPIES = (0, 2, 1, 3)
"""Number of tokens that a copier drafts after each token."""


class _Copier(DeterministicDrafter):
    """Drafts 0 to 3 tokens, as many as the last token says; they depend on all tokens before."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        return [(sum(tokens) + place) % VOCAB for place in range(min(budget, COPIES[tokens[-1]]))]


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

    return Case(_Drafter(propose), lambda prefix, draft: weights((*prefix, *draft)[-1]).double().numpy())


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

    return Case(_Drafter(propose), q_of)


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


@cache
def texts_of(name: str) -> Any:
    return all_texts(target(), SAMPLINGS[name])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("case", CASES)
def test_expected_counts_equal_enumeration(case: str, sampling: str) -> None:
    own = CASES[case](SAMPLINGS[sampling])
    texts, weights = texts_of(sampling)
    acceptance = replayed(target(), texts, SAMPLINGS[sampling], own.drafter, batch_size=16).acceptance()
    for gamma in GAMMAS:
        expected = expected_by_enumeration(target(), SAMPLINGS[sampling], own.q_of, gamma)
        require_equal(expected_by_replay(acceptance, weights, gamma), expected)


@pytest.mark.parametrize("sampling", ["greedy", "1"])
@pytest.mark.parametrize("case", ["autoregressive", "sparse", "candidates", "hierarchy"])
@pytest.mark.parametrize("longest", [1, 2])
def test_texts_of_several_chunks(case: str, sampling: str, longest: int) -> None:
    """Autoregressive drafters are asked in chunks of as many tokens as the longest draft."""
    own = CASES[case](SAMPLINGS[sampling])
    texts, weights = texts_of(sampling)
    replay = replayed(
        target(), texts, SAMPLINGS[sampling], own.drafter, longest, autoregressive=True, batch_size=64
    )
    expected = expected_by_enumeration(target(), SAMPLINGS[sampling], own.q_of, longest)
    require_equal(expected_by_replay(replay.acceptance(), weights, longest), expected)


@pytest.mark.parametrize("draft", [SamplingSettings(temperature=0.5), SamplingSettings(temperature=0)])
@pytest.mark.parametrize("sampling", ["greedy", "1"])
@pytest.mark.parametrize("case", ["autoregressive", "heads", "hierarchy"])
def test_drafts_with_sampling_settings_of_their_own(case: str, sampling: str, draft: SamplingSettings) -> None:
    own = CASES[case](draft)
    texts, weights = texts_of(sampling)
    replay = replayed(target(), texts, SAMPLINGS[sampling], own.drafter, draft_sampling=draft, batch_size=64)
    expected = expected_by_enumeration(target(), SAMPLINGS[sampling], own.q_of, 3)
    require_equal(expected_by_replay(replay.acceptance(), weights, 3), expected)


@pytest.mark.parametrize("temperature", [0, 1])
def test_repetition_penalty_sees_the_text(temperature: float) -> None:
    """Greedy drafts keep their argmax, but the next token is penalised for the text's."""
    sampling = SamplingSettings(temperature=temperature, repetition_penalty=3.0)
    drafter = TableDrafter(VOCAB)

    def q_of(prefix: tuple[int, ...], draft: tuple[int, ...]) -> Any:
        text = (*prefix, *draft)
        q = adjusted(drafter.table[text[-1]], sampling, text).numpy()
        return int(q.argmax()) if sampling.greedy else q

    texts, weights = all_texts(target(), sampling)
    acceptance = replayed(target(), texts, sampling, drafter, batch_size=64).acceptance()
    require_equal(expected_by_replay(acceptance, weights, 3), expected_by_enumeration(target(), sampling, q_of, 3))


def test_drafts_that_depend_on_the_budget() -> None:
    """With a budget of 1 a draft of one token is long enough, with a larger one it is replaced."""
    sampling = SAMPLINGS["1"]
    copier, table = _deterministic(sampling), _autoregressive(sampling)
    drafter = _chain(sampling, min_draft_tokens=2).drafter
    texts, weights = texts_of("1")
    acceptance = replayed(target(), texts, sampling, drafter, batch_size=64).acceptance()
    for gamma in GAMMAS:
        require_equal(
            expected_by_replay(acceptance, weights, gamma),
            expected_by_enumeration(target(), sampling, Replacing(copier.q_of, table.q_of, gamma), gamma),
        )


class Replacing:
    """q of a chain that replaces copies of fewer than 2 tokens, unless no more are asked for."""

    def __init__(self, copied: QOf, drawn: QOf, gamma: int) -> None:
        self._copied, self._drawn, self._gamma = copied, drawn, gamma

    def __call__(self, prefix: tuple[int, ...], draft: tuple[int, ...]) -> Any:
        budget = min(self._gamma, 5 - (len(prefix) - 4) - 1)
        copies = COPIES[prefix[-1]] >= min(2, budget)
        return (self._copied if copies else self._drawn)(prefix, draft)
