"""The kit on acceptance rules: those that ship conform, and each defect is found by the check for it."""

import os
import random
from dataclasses import replace

import pytest
import torch

from specdec_core import default_registry
from specdec_core.interface import AcceptanceRule, PluginConfig, RuleConfig
from specdec_core.interface.rules import TokenRuleConfig
from specdec_core.testing import RuleKit
from specdec_core.verification import accept, accept_greedy, accept_greedy_allowed
from tests.conformance import failure_of, failures, kit_of, names_of
from tests.pairwise import some

BUILT_IN = {
    "token": {},
    "block": {},
    "rejection": {},
    "exact-match": {},
    "typical": {"epsilon": 0.3},
    "top-k": {"k": 2},
}


class Correct(AcceptanceRule):
    """Algorithm 1."""

    def sample(self, proposal, p, lenience, uniforms):
        return accept(proposal, p, lenience, uniforms)

    def greedy(self, proposal, scores, lenience):
        return accept_greedy(proposal, scores, lenience)


class WrongShape(Correct):
    def sample(self, *given):
        answer = super().sample(*given)
        return replace(answer, accepted=answer.accepted[:, None])


class TooMany(Correct):
    def greedy(self, *given):
        answer = super().greedy(*given)
        return replace(answer, accepted=answer.accepted + 1)


class FromP(Correct):
    """Draws the token after a rejection from p."""

    def sample(self, proposal, p, lenience, uniforms):
        answer = super().sample(proposal, p, lenience, uniforms)
        rows = torch.arange(len(p))
        other = accept(replace(proposal, lengths=(0,) * len(p)), p[rows, answer.accepted][:, None].repeat(
            1, p.shape[1], 1), None, uniforms)  # fmt: skip
        return replace(answer, token=other.token)


class Quiet(FromP):
    """Deviates, and reports half of it."""

    def sample(self, proposal, p, lenience, uniforms):
        lenient = accept(proposal, p, torch.full(proposal.tokens.shape, 0.3), uniforms)
        return lenient if lenient.deviation is None else replace(lenient, deviation=lenient.deviation / 2)


class Second(Correct):
    """Accepts every greedy draft token."""

    def greedy(self, proposal, scores, lenience):
        if not proposal.tokens.shape[1]:
            return accept_greedy(proposal, scores, None)
        return accept_greedy_allowed(proposal, scores, torch.ones_like(proposal.tokens, dtype=torch.bool))


class SecondQuietly(Second):
    def greedy(self, *given):
        return replace(super().greedy(*given), deviation=None)


class Neighbors(Correct):
    """A row accepts what the row before it does."""

    def sample(self, *given):
        answer = super().sample(*given)
        return replace(answer, token=answer.token.roll(1) * 0 + int(answer.token.sum()) % 3)


class Dice(Correct):
    def sample(self, proposal, p, lenience, uniforms):
        own = torch.rand(uniforms.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(self.seed()))
        return accept(proposal, p, lenience, own)

    def seed(self):
        self.calls = getattr(self, "calls", 0) + 1
        return self.calls


class InPlace(Correct):
    def sample(self, proposal, p, lenience, uniforms):
        answer = super().sample(proposal, p, lenience, uniforms)
        p.mul_(0.5)
        return answer


class Reseeds(Correct):
    def sample(self, *given):
        random.seed(3)
        os.environ["SPECDEC_TEST"] = "1"
        return super().sample(*given)


class TakesMore(Correct):
    """Algorithm 1, replayed as if everything that q favors were accepted."""

    def acceptance_given_text(self, ratio, least):
        return (ratio >= 1).astype(float)


class LossyConfig(RuleConfig):
    pass


DEFECTS = [
    (WrongShape, TokenRuleConfig, "answers"),
    (TooMany, TokenRuleConfig, "answers"),
    (FromP, TokenRuleConfig, "distribution"),
    (TakesMore, TokenRuleConfig, "replay_as_declared"),
    (Quiet, LossyConfig, "distribution"),
    (Second, TokenRuleConfig, "lossless_greedy"),
    (SecondQuietly, LossyConfig, "deviation_greedy"),
    (Neighbors, TokenRuleConfig, "rows_independent"),
    (Dice, TokenRuleConfig, "deterministic"),
    (InPlace, TokenRuleConfig, "answers"),
    (Reseeds, TokenRuleConfig, "global_state_unchanged"),
    (FromP, TokenRuleConfig, "decodes"),
    (Correct, PluginConfig, "answers"),
]
ENUMERATED = {"distribution", "replay_as_declared"}
"""Checks that enumerate the drafts of a rule, as tests/plugins/test_rules.py does by default."""
LISTING = "spec_imports_no_torch"
"""One process can tell for all plugins of a distribution whether listing them imports torch."""


def built_in(name, device):
    return kit_of(RuleKit, plugin=name, settings=BUILT_IN[name], device=device)


@pytest.mark.parametrize("name", some(BUILT_IN, 2))
def test_a_rule_that_ships_conforms(name, device):
    assert not failures(built_in(name, device), *set(names_of(RuleKit)) - ENUMERATED - {LISTING})


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BUILT_IN)[1:])  # tests/verification and tests/plugins have that
def test_the_distribution_of_a_rule_that_ships_is_as_declared(name, device):
    kit, exact = built_in(name, device), name in ("token", "block", "rejection")
    found = {check: failure_of(kit, check) for check in ENUMERATED}
    assert found["distribution"] is None
    assert found["replay_as_declared"] is None if exact else found["replay_as_declared"].startswith("skipped: ")


def test_every_rule_that_ships_is_checked():
    assert {spec.name for spec in default_registry().specs("rule")} == set(BUILT_IN)


@pytest.mark.parametrize(("defect", "config", "name"), DEFECTS, ids=lambda one: getattr(one, "__name__", one))
def test_a_defect_is_found_by_the_check_for_it(defect, config, name, monkeypatch):
    monkeypatch.delenv("SPECDEC_TEST", raising=False)
    assert failure_of(kit_of(RuleKit, lambda: defect(config())), name).startswith("did:")


def test_every_check_has_a_defect():
    assert set(names_of(RuleKit)) == {name for *_, name in DEFECTS} | {LISTING, "settings_described"}
