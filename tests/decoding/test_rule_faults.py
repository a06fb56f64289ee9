"""An acceptance rule that raises or returns nonsense costs speed, never a token."""

from dataclasses import replace

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import AcceptanceRule, PluginError, RuleConfig
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.testing.harness.enumeration import sampled
from specdec_core.verification import accept, accept_greedy
from tests.lossless import VOCAB, enumerate_continuations, p_value, small_target
from tests.toys import Gamma, TableDrafter

SAMPLED, GREEDY = SamplingSettings(temperature=0.8), SamplingSettings(temperature=0)
PROMPTS = [[1, 2, 3], [2, 3]]
SETTINGS = GenerationSettings(max_new_tokens=8, ignore_eos=True)


class Changed(AcceptanceRule):
    """Algorithm 1, whose answer a function changes from the second step on."""

    def __init__(self, change):
        super().__init__(RuleConfig())
        self.change, self.calls = change, 0

    def sample(self, proposal, p, lenience, uniforms):
        return self._changed(accept(proposal, p, lenience, uniforms), proposal)

    def greedy(self, proposal, scores, lenience):
        return self._changed(accept_greedy(proposal, scores, lenience), proposal)

    def _changed(self, answer, proposal):
        self.calls += 1
        return answer if self.calls <= 1 else self.change(answer, proposal)


WRONG = {
    "raises": (lambda answer, proposal: [][1], "IndexError"),
    "None": (lambda answer, proposal: None, "returned an object of type NoneType, not an AcceptanceResult"),
    "dtype": (lambda answer, proposal: replace(answer, token=answer.token.float()), "torch.float32 of shape"),
    "too many": (
        lambda answer, proposal: replace(answer, accepted=answer.accepted + 4),
        r"[4-7] of [0-3] draft",
    ),
    "vocabulary": (lambda answer, proposal: replace(answer, token=answer.token + VOCAB), r"vocabulary \(0 to 5\)"),
    "deviation": (
        lambda answer, proposal: replace(answer, deviation=torch.full(proposal.tokens.shape, torch.nan)),
        "its deviation is .*nan.* from 0 to 1",
    ),
    "unsound": (
        lambda answer, proposal: replace(answer, sound=answer.sound & False),
        "sound is False although the target's distribution is one",
    ),
}


@pytest.fixture(scope="module")
def target():
    return small_target("cpu")


def decoder(target, rule, sampling, *, strict=False):
    return Decoder(target, TableDrafter(VOCAB), gamma=Gamma(3), sampling=sampling, rule=rule, strict=strict)


@pytest.mark.parametrize(
    ("what", "sampling"), [*((what, SAMPLED) for what in WRONG), ("raises", GREEDY), ("too many", GREEDY)]
)
def test_algorithm_1_takes_the_place_of_a_rule_that_fails(target, what, sampling):
    change, said = WRONG[what]
    rule = Changed(change)
    with pytest.warns(PluginWarning, match=f"Changed failed at step 1(?s:.*){said}"):
        result = decoder(target, rule, sampling).generate(PROMPTS, SETTINGS)
    assert all(len(row.tokens) == 8 for row in result.sequences)
    assert rule.calls == 2, "it is not asked again"
    (failure,) = result.failures
    assert failure.plugin == "Changed"
    plain = Decoder(target, sampling=GREEDY) if sampling is GREEDY else decoder(target, "token", sampling)
    assert [row.tokens for row in result] == [row.tokens for row in plain.generate(PROMPTS, SETTINGS)]
    # The next call asks it again.
    rule.calls = -100
    assert not decoder(target, rule, sampling).generate(PROMPTS, SETTINGS).failures


@pytest.mark.parametrize("what", ["raises", "too many"])
def test_strict_raises(target, what):
    change, said = WRONG[what]
    with pytest.raises(PluginError, match=f"Changed failed at step 1.*{said}"):
        decoder(target, Changed(change), SAMPLED, strict=True).generate(PROMPTS, SETTINGS)


@pytest.mark.parametrize("what", ["raises", "too many"])
@pytest.mark.filterwarnings("ignore::specdec_core.PluginWarning")
def test_the_output_keeps_the_targets_distribution(target, what):
    class Always(Changed):
        def _changed(self, answer, proposal):
            return self.change(answer, proposal)

    made = decoder(target, Always(WRONG[what][0]), SAMPLED)
    assert p_value(sampled(made, 500, 1500), enumerate_continuations(target, SAMPLED)) > 1e-4


def test_a_rule_may_answer_for_no_draft_at_all(target):
    empty = Changed(lambda answer, proposal: answer)
    result = Decoder(target, TableDrafter(VOCAB), gamma=Gamma(0), rule=empty, strict=True).generate(
        PROMPTS, SETTINGS
    )
    assert empty.calls == 8
    assert result.metrics.accepted == 0
