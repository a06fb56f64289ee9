"""What no drafter can bring about through the border, the checks of the decoding loop must see all the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specdec_core.acceptance import accept_argmax
from specdec_core.decoding import rules
from specdec_core.testing import CheckFailure, DrafterSubject
from specdec_core.testing.judging import drafter_decoding as decoding
from tests.testing.defects.healthy import Guessing

SUBJECT = DrafterSubject(Guessing)


@pytest.mark.parametrize("check", [decoding.same_as_plain, decoding.within_a_hierarchy])
def test_a_core_that_keeps_every_draft_by_argmax_is_seen(monkeypatch, check):
    def keep_all(proposal, scores, granted=None):
        return accept_argmax(proposal, scores, torch.ones_like(proposal.tokens, dtype=torch.bool))

    monkeypatch.setattr(rules, "accept_argmax", keep_all)
    with pytest.raises(CheckFailure, match="those of plain decoding"):
        check(SUBJECT)


def test_a_loop_that_takes_more_calls_is_seen(monkeypatch):
    def decode(world, drafter, prompts, **settings):
        return SimpleNamespace(metrics=SimpleNamespace(target_calls=8 if drafter is None else 9))

    monkeypatch.setattr(decoding, "_decode", decode)
    with pytest.raises(CheckFailure, match="9 target calls"):
        decoding.no_more_calls(SUBJECT)
