"""Each acceptance rule against the distribution it must have, by enumeration, and through the decoder."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import PluginError, PointMass, Proposal
from specdec_core.interface.settings import SamplingSettings
from specdec_core.testing.harness.rule_distribution import (
    FORMS,
    TOLERANCE,
    Models,
    deviation_of,
    models,
    replay_error,
    step_of,
)
from specdec_core.verification import SpeculativeSampling, accept, accept_greedy
from specdec_plugins.rules.block import BlockRule
from specdec_plugins.rules.lossless import ExactMatchRule, RejectionRule
from specdec_plugins.rules.lossy import TopKRule, TypicalRule
from specdec_plugins.rules.settings import (
    BlockRuleConfig,
    ExactMatchRuleConfig,
    RejectionRuleConfig,
    TopKRuleConfig,
    TypicalRuleConfig,
)
from tests.catalogue import Catalogue
from tests.lossless import VOCAB, doubled_p_value, enumerate_continuations, p_value, sample
from tests.pairwise import some
from tests.toys import Gamma, TableDrafter

TOKEN, BLOCK, REJECTION, EXACT = (
    SpeculativeSampling(),
    BlockRule(BlockRuleConfig()),
    RejectionRule(RejectionRuleConfig()),
    ExactMatchRule(ExactMatchRuleConfig()),
)
LOSSLESS = {"token": TOKEN, "block": BLOCK, "rejection": REJECTION}
LOSSY = {
    "typical": TypicalRule(TypicalRuleConfig(epsilon=0.3, delta=0.6)),
    "top-1": TopKRule(TopKRuleConfig(k=1)),
    "top-2": TopKRule(TopKRuleConfig(k=2)),
    "top-9": TopKRule(TopKRuleConfig(k=9)),
}
SIZES = [(4, 0), (4, 1), (4, 2), (3, 3), (3, 3), (4, 2), (3, 2)]
QUICK = (0, 1, 6)
"""Those of `SIZES` with few drafts; the others are slow."""
HARD = SamplingSettings(temperature=0.7, top_k=4)


def answered(rule, step):
    """Return the answer to a step: of `token`, that of tensors. A CPU gives the same, but row by row."""
    function = accept if rule is TOKEN else rule.sample
    return function(step.proposal, step.p, None, step.uniforms)


def deviations(rule, pair, form="dense"):
    step = step_of(pair, form)
    return deviation_of(step, answered(rule, step))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "seeds"),
    [  # of `token`, tests/verification has every position
        *((name, QUICK) for name in ("block", "rejection")),
        *(pytest.param(name, range(len(SIZES)), marks=pytest.mark.slow) for name in LOSSLESS),
    ],
)
def test_lossless_rules_give_the_targets_distribution(name, seeds, form):
    rule = LOSSLESS[name]
    for seed in seeds:
        step = step_of(models(*SIZES[seed], seed), form)
        answer = answered(rule, step)
        found = deviation_of(step, answer)
        assert found.measured.max() < TOLERANCE, (seed, found)
        assert found.declared.sum() == 0
        assert (replay_error(step, answer, rule) < TOLERANCE).all(), seed


@pytest.mark.parametrize(("name", "form"), some(product(LOSSY, FORMS), 5))
def test_lossy_rules_deviate_by_what_they_declare(name, form):
    most = 0.0
    for seed, size in enumerate(SIZES):
        found = deviations(LOSSY[name], models(*size, seed), form)
        assert torch.allclose(found.measured, found.declared, atol=TOLERANCE), (size, found)
        most = max(most, float(found.measured.max()))
    assert most > 10 * TOLERANCE  # lossy indeed


def test_block_is_exact_where_models_agree_or_share_nothing():
    pair = models(3, 3, 5)
    one_hot = tuple(torch.nn.functional.one_hot(p.argmax(dim=1), 3).float() for p in pair.p)
    other = tuple(one.roll(1, dims=1) for one in one_hot[:-1])
    for p, q in ((pair.p, pair.p[:-1]), (one_hot, pair.q), (pair.p, other), (one_hot, other)):
        for form in ("dense", "sparse"):
            assert deviations(BLOCK, Models(p, q), form).measured.max() < TOLERANCE
    assert deviations(BLOCK, Models(pair.p, pair.p[:-1])).accepted == pytest.approx(3)


def test_the_residual_of_block_is_that_of_what_was_accepted():
    # After token 0, c = 5/9 lies between the ratios q / p of tokens 0 and 1: p - q would draw token 1, too.
    first = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.9, 0.1, 0.0]])
    after = torch.tensor([[0.6, 0.35, 0.05]]).expand(3, 3), torch.tensor([[0.2, 0.3, 0.5]]).expand(3, 3)
    pair = Models((first[0], after[0], after[0].repeat(3, 1)), (first[1], after[1]))
    for form in ("dense", "sparse"):
        assert deviations(BLOCK, pair, form).measured.max() < TOLERANCE / 2


@pytest.mark.slow
def test_block_never_accepts_fewer_tokens_than_token():
    gained = []
    for seed in range(9):
        pair = models(3, 1 + seed % 3, seed)
        for form in ("dense", "point"):
            token, block = deviations(TOKEN, pair, form).accepted, deviations(BLOCK, pair, form).accepted
            assert block > token - 1e-3
            gained.append(block - token)
    assert max(gained) > 0.03


@pytest.mark.slow
def test_of_a_point_mass_block_accepts_as_many_as_token():
    # Each ratio p / q is at most 1, so that no position makes up for another.
    pair = models(3, 2, 2)
    assert deviations(BLOCK, pair, "point").accepted == pytest.approx(
        deviations(TOKEN, pair, "point").accepted, abs=1e-3
    )


@pytest.mark.parametrize("rule", [BLOCK, REJECTION, *LOSSY.values()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("form", FORMS)
def test_a_row_depends_on_nothing_but_itself(rule, form):
    """Neither on the rows beside it, nor on what lies beyond its length."""
    step = step_of(models(4, 2, 1), form, points=64)
    count, width = step.proposal.tokens.shape
    lengths = tuple(row % (width + 1) for row in range(count))
    mixed = rule.sample(replace(step.proposal, lengths=lengths), step.p, None, step.uniforms)
    for length in range(width + 1):
        rows = [row for row in range(count) if lengths[row] == length]
        noise = torch.rand(step.p.shape, generator=torch.Generator().manual_seed(3))
        p = torch.where((torch.arange(width + 1) <= length)[:, None], step.p, noise / noise.sum(2, keepdim=True))
        beyond = torch.arange(width) >= length
        tokens = torch.where(beyond, 3, step.proposal.tokens)
        numbers = torch.where(torch.cat([beyond, torch.tensor([False])]), 0.1, step.uniforms)
        same = Proposal(tokens, (length,) * count, step.proposal.q)
        alone = rule.sample(same, p, None, numbers)
        assert torch.equal(alone.accepted[rows], mixed.accepted[rows])
        assert torch.equal(alone.token[rows], mixed.token[rows])
        if mixed.deviation is not None:
            close = torch.isclose(alone.deviation[rows, :length], mixed.deviation[rows, :length])
            assert close.all()


@pytest.mark.parametrize("rule", [BLOCK, REJECTION, *LOSSY.values()], ids=lambda one: type(one).__name__)
def test_nan_is_unsound_where_the_text_gets_there(rule):
    step = step_of(models(4, 2, 1), "dense", points=64)
    p = step.p.clone()
    p[:, 1] = torch.nan
    answer = rule.sample(step.proposal, p, None, step.uniforms)
    assert torch.equal(answer.sound, answer.accepted == 0)
    assert answer.deviation is None or answer.deviation.isfinite().all()
    # Text that ends before it is not affected.
    whole = rule.sample(step.proposal, step.p, None, step.uniforms)
    before = rule.sample(replace(step.proposal, lengths=(0,) * len(p)), p, None, step.uniforms)
    assert before.sound.all()
    assert whole.sound.all()


@pytest.mark.parametrize("rule", [BLOCK, REJECTION, EXACT, LOSSY["typical"]], ids=lambda one: type(one).__name__)
def test_greedy_drafts_are_verified_by_comparing_tokens(rule):
    scores = torch.randn(64, 3, 5, generator=torch.Generator().manual_seed(0))
    drafts = torch.where(torch.rand(64, 2) < 0.6, scores[:, :2].argmax(dim=2), 1)
    proposal = Proposal(drafts, tuple(row % 3 for row in range(64)), PointMass())
    found, expected = rule.greedy(proposal, scores, None), accept_greedy(proposal, scores, None)
    assert torch.equal(found.accepted, expected.accepted)
    assert torch.equal(found.token, expected.token)
    assert found.deviation is None


def test_top_k_accepts_by_rank_in_greedy_decoding():
    scores = torch.tensor([[5.0, 4.0, 3.0, -torch.inf], [1.0, 2.0, 0.0, 3.0], [0.0, 1.0, 2.0, 3.0]])
    rule = TopKRule(TopKRuleConfig(k=2))

    def verified(*draft):
        answer = rule.greedy(Proposal(torch.tensor([draft]), (2,), PointMass()), scores[None], None)
        return int(answer.accepted), int(answer.token), answer.deviation[0].tolist()

    assert verified(1, 3) == (2, 3, [1.0, 0.0])
    assert verified(0, 1) == (2, 3, [0.0, 1.0])
    assert verified(2, 3) == (0, 0, [0.0, 0.0])
    assert verified(1, 0) == (1, 3, [1.0, 0.0])
    everything = TopKRule(TopKRuleConfig(k=4))
    excluded = everything.greedy(Proposal(torch.tensor([[3, 3]]), (2,), PointMass()), scores[None], None)
    assert int(excluded.accepted) == 0


def test_no_rule_accepts_what_the_sampling_settings_exclude():
    p = torch.tensor([[[0.7, 0.3, 0.0], [0.5, 0.5, 0.0]]])
    proposal = Proposal(torch.tensor([[2]]), (1,), PointMass())
    for rule in (*LOSSLESS.values(), *LOSSY.values()):
        assert int(rule.sample(proposal, p, None, torch.zeros(1, 2, dtype=torch.float64)).accepted) == 0


def test_exact_match_does_not_sample():
    with pytest.raises(PluginError, match="set temperature to 0"):
        EXACT.sample(Proposal.empty(1), torch.ones(1, 1, 2) / 2, None, torch.zeros(1, 1))


@pytest.fixture(scope="module")
def expected(target):
    return enumerate_continuations(target, HARD, length=4)


@pytest.mark.parametrize("rule", ["block", "rejection"])
@pytest.mark.parametrize(
    ("who", "count"),
    [
        *((who, 2400) for who in ("table", "copy-recent")),
        *(
            pytest.param(who, 20_000, marks=pytest.mark.slow)
            for who in ("table", "copy-recent", "trigram", "transformer")
        ),
    ],
)
def test_decoding_is_lossless(target, expected, tmp_path, rule, who, count):
    """Drafts differ in length, and end where a token that was drafted is improbable."""
    drafter = TableDrafter(VOCAB) if who == "table" else Catalogue(target, tmp_path).make(who)
    gamma = Gamma(3, 0, 2, stop_below=0.2)
    decoder = Decoder(target, drafter, gamma=gamma, sampling=HARD, rule=rule, strict=True)
    assert doubled_p_value(decoder, expected, count, length=4) > 1e-4


@pytest.mark.parametrize("rule", ["typical", "top-k"])
def test_lossy_decoding_reports_its_deviation(target, expected, rule):
    gamma = Gamma(3, 0, 2)
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=gamma, sampling=HARD, rule=rule, strict=True)
    result = decoder.generate([[1, 2, 3]] * 100, max_new_tokens=4)
    assert result.metrics.deviation > 1
    assert p_value(sample(decoder, 500, 1500, length=4), expected) < 1e-4
