"""Replayed counts equal what Algorithm 1 counts on average, by enumeration of all texts, drafts and outcomes."""

from functools import cache
from typing import Any

import pytest

from specdec_core.interface.settings import SamplingSettings
from specdec_core.testing.harness.enumeration import adjusted
from specdec_core.testing.harness.toys import TableDrafter
from tests.offline.replay.cases import (
    CASES,
    SAMPLINGS,
    VOCAB,
    Replacing,
    _autoregressive,
    _chain,
    _deterministic,
    target,
)
from tests.offline.replay.support import (
    PROMPT,
    all_texts,
    expected_by_enumeration,
    expected_by_replay,
    replayed,
    require_equal,
)
from tests.pairwise import some

GAMMAS = (0, 3)
WITH_SAMPLING = [
    *((case, "1") for case in CASES),
    *((case, ("greedy", "top-p")[number % 2]) for number, case in enumerate(CASES)),
]
"""Every case at temperature 1 and with one of the other kinds of sampling; `test_rules.py` has other pairs."""


@cache
def texts_of(name: str) -> Any:
    return all_texts(target(), SAMPLINGS[name])


@pytest.mark.parametrize(("case", "sampling"), some(WITH_SAMPLING, 3))
def test_expected_counts_equal_enumeration(case: str, sampling: str) -> None:
    own = CASES[case](SAMPLINGS[sampling])
    texts, weights = texts_of(sampling)
    acceptance = replayed(target(), texts, SAMPLINGS[sampling], own.drafter, batch_size=16).acceptance()
    for gamma in GAMMAS:
        expected = expected_by_enumeration(target(), SAMPLINGS[sampling], own.q_of, gamma)
        require_equal(expected_by_replay(acceptance, weights, gamma), expected)


@pytest.mark.parametrize(
    ("case", "sampling", "longest"),
    [("autoregressive", "1", 2), ("sparse", "greedy", 2), ("candidates", "1", 1), ("hierarchy", "greedy", 1)],
)
def test_texts_of_several_chunks(case: str, sampling: str, longest: int) -> None:
    """Autoregressive drafters are asked in chunks of as many tokens as the longest draft."""
    own = CASES[case](SAMPLINGS[sampling])
    texts, weights = texts_of(sampling)
    replay = replayed(
        target(), texts, SAMPLINGS[sampling], own.drafter, longest, autoregressive=True, batch_size=64
    )
    expected = expected_by_enumeration(target(), SAMPLINGS[sampling], own.q_of, longest)
    require_equal(expected_by_replay(replay.acceptance(), weights, longest), expected)


@pytest.mark.parametrize(
    ("case", "sampling", "temperature"),
    [("autoregressive", "1", 0.5), ("heads", "greedy", 0.5), ("hierarchy", "1", 0)],
)
def test_drafts_with_sampling_settings_of_their_own(case: str, sampling: str, temperature: float) -> None:
    draft = SamplingSettings(temperature=temperature)
    own = CASES[case](draft)
    texts, weights = texts_of(sampling)
    replay = replayed(target(), texts, SAMPLINGS[sampling], own.drafter, draft_sampling=draft, batch_size=64)
    expected = expected_by_enumeration(target(), SAMPLINGS[sampling], own.q_of, 3)
    require_equal(expected_by_replay(replay.acceptance(), weights, 3), expected)


@pytest.mark.parametrize(("temperature", "penalty"), [(0, "frequency_penalty"), (1, "repetition_penalty")])
def test_penalties_see_the_text(temperature: float, penalty: str) -> None:
    """Greedy drafts keep their argmax, but the next token is penalized for the text's."""
    sampling = SamplingSettings(temperature=temperature, **{penalty: 2.0})
    drafter = TableDrafter(VOCAB)

    def q_of(prefix: tuple[int, ...], draft: tuple[int, ...]) -> Any:
        text = (*prefix, *draft)
        q = adjusted(drafter.table[text[-1]], sampling, text, len(PROMPT)).numpy()
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
