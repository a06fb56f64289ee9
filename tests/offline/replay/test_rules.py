"""Rules other than Algorithm 1: replayed counts equal what each rule counts on average, by enumeration."""

from collections.abc import Sequence
from functools import cache
from itertools import cycle, product

import numpy as np
import pytest

from specdec_core.decoding.arguments import make_controller
from specdec_core.interface import AcceptanceRule, ConfigError, PluginError
from specdec_core.interface.rules import TokenRuleConfig
from specdec_core.interface.settings import SamplingSettings
from specdec_core.offline.record.format import RecordedText
from specdec_core.offline.replay.replayed_metrics import TextAcceptance, expected_metrics
from specdec_core.testing.harness.replaying import decode_and_replay
from specdec_core.testing.harness.toys import Gamma, TableDrafter
from specdec_core.verification import SpeculativeSampling
from tests.offline.replay.cases import CASES, SAMPLINGS, VOCAB, Replacing, target
from tests.offline.replay.support import (
    PROMPT,
    all_texts,
    expected_by_enumeration,
    expected_by_replay,
    replayed,
    require_equal,
    small_target,
)
from tests.pairwise import some

SAMPLED = SAMPLINGS["1"]
RULES = ("block", "rejection")
ROWS = [
    (rule, case, sampling) for (rule, case), sampling in zip(product(RULES, CASES), cycle(SAMPLINGS), strict=False)
]
"""Every case with either rule, and every kind of sampling with either."""


def rule_of(name: str) -> AcceptanceRule:
    rule = make_controller("rule", name)
    assert rule is not None
    return rule


@cache
def texts_with_p(sampling: str, k: int = VOCAB) -> tuple[list[RecordedText], np.ndarray]:
    return all_texts(target(), SAMPLINGS[sampling], top_k=k)


@pytest.mark.parametrize("gammas", [(3,), pytest.param((0, 1, 2, 4), marks=pytest.mark.slow)])
@pytest.mark.parametrize(("rule", "case", "sampling"), some(ROWS, 4))
def test_expected_counts_equal_enumeration(rule: str, case: str, sampling: str, gammas: Sequence[int]) -> None:
    own = CASES[case](SAMPLINGS[sampling])
    texts, weights = texts_with_p(sampling)
    acceptance = replayed(target(), texts, SAMPLINGS[sampling], own.drafter, batch_size=16).acceptance()
    for gamma in gammas:
        expected = expected_by_enumeration(target(), SAMPLINGS[sampling], own.q_of, gamma, rule=rule)
        found = expected_by_replay(acceptance, weights, gamma, rule=rule_of(rule), greedy=sampling == "greedy")
        require_equal(found, expected)


@pytest.mark.slow
def test_drafts_that_depend_on_the_budget() -> None:
    """A chain that replaces short copies, unless no more are asked for."""
    copier, table = CASES["deterministic"](SAMPLED), CASES["autoregressive"](SAMPLED)
    drafter = CASES["chain"](SAMPLED, min_draft_tokens=2).drafter
    texts, weights = texts_with_p("1")
    acceptance = replayed(target(), texts, SAMPLED, drafter, batch_size=64).acceptance()
    q_of = Replacing(copier.q_of, table.q_of, 3)
    expected = expected_by_enumeration(target(), SAMPLED, q_of, 3, rule="block")
    require_equal(expected_by_replay(acceptance, weights, 3, rule=rule_of("block")), expected)


def _acceptance(k: int = VOCAB, sampling: str = "1") -> Sequence[TextAcceptance]:
    texts, _ = texts_with_p(sampling, k)
    return replayed(target(), texts[:40], SAMPLINGS[sampling], TableDrafter(VOCAB), batch_size=64).acceptance()


@pytest.mark.parametrize("rule", some(RULES, 1))
def test_controllers_are_replayed_with_the_rule(rule: str) -> None:
    acceptance = _acceptance()[:12]
    exact = expected_metrics(acceptance, 3, rule=rule_of(rule))
    drawn = expected_metrics(acceptance, Gamma(3), rule=rule_of(rule), draws=200)
    assert drawn.drawn is not None
    apart = abs(drawn.metrics.block_efficiency - exact.metrics.block_efficiency)
    assert apart < 4.5 * drawn.drawn


def test_block_accepts_more_than_token_and_rejection_less() -> None:
    acceptance = _acceptance()
    rejection, token, block = (
        expected_metrics(acceptance, 4, rule=rule).metrics.block_efficiency
        for rule in (rule_of("rejection"), None, rule_of("block"))
    )
    assert 1 < rejection < token - 0.05
    assert token < block - 0.01


@pytest.mark.parametrize(
    ("k", "sampling", "known"),
    [
        (VOCAB, "1", True),
        (VOCAB - 1, "1", False),
        (0, "1", False),
        (VOCAB - 1, "top-p", False),
        (VOCAB, "top-p", True),
    ],
)
def test_p_of_all_tokens_is_known_if_the_record_says_that_no_others_have_any(k, sampling, known) -> None:
    if known:
        expected_metrics(_acceptance(k, sampling), 2, rule=rule_of("rejection"))
    else:
        with pytest.raises(ConfigError, match=r"'rejection' cannot be replayed on this record.*--keep-top"):
            expected_metrics(_acceptance(k, sampling), 2, rule=rule_of("rejection"))


def test_a_zero_among_the_kept_says_that_no_other_token_has_any() -> None:
    """Top-k 2 leaves two tokens; one more says that there are no others."""
    sampling = SamplingSettings(top_k=2)
    whole, two, three = (
        replayed(target(), all_texts(target(), sampling, top_k=k)[0], sampling, TableDrafter(VOCAB)).acceptance()
        for k in (4, 2, 3)
    )
    for one, unknown, known in zip(whole, two, three, strict=True):
        assert unknown.least is None
        np.testing.assert_array_equal(one.accept(rule_of("rejection")), known.accept(rule_of("rejection")))


class _Wrong(SpeculativeSampling):
    def __init__(self, answer) -> None:
        super().__init__(TokenRuleConfig())
        self.answer = answer

    def acceptance_given_text(self, ratio, least):
        return self.answer(ratio)


@pytest.mark.parametrize("answer", [lambda r: r[:, 0], lambda r: r + 2, lambda r: r * np.nan, lambda r: None])
def test_answers_that_are_no_probabilities_are_refused(answer) -> None:
    with pytest.raises(PluginError, match=r"_Wrong failed.*acceptance_given_text"):
        expected_metrics(_acceptance(), 2, rule=_Wrong(answer))


@pytest.mark.parametrize("rule", some(RULES, 1))
def test_live_decoding_agrees(rule: str) -> None:
    found = decode_and_replay(
        small_target(VOCAB),
        TableDrafter(VOCAB),
        SAMPLED,
        PROMPT,
        gamma=3,
        max_gamma=4,
        count=400,
        length=9,
        batch=200,
        rule=rule_of(rule),
    )
    assert found.farthest()[0] < 4.5
