"""Errors that no drafter can cause through the interface: the checks of decoding must see them, too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specdec_core.decoding import decision
from specdec_core.testing import CheckFailure, DrafterSubject
from specdec_core.testing.checks import drafter_decoding as decoding
from tests.testing.defects.healthy import Deterministic

SUBJECT = DrafterSubject(Deterministic)


@pytest.mark.parametrize("check", [decoding.greedy_equals_baseline, decoding.inside_hierarchy])
def test_a_core_that_accepts_every_greedy_draft_fails(monkeypatch, check):
    def accept_all(best, bits, draft, parents, lengths, given=decision._followed):
        rows = zip(draft, best, lengths, strict=True)
        return given([[*own[:n], *row[n:]] for own, row, n in rows], bits, draft, parents, lengths)

    monkeypatch.setattr(decision, "_followed", accept_all)
    with pytest.raises(CheckFailure, match="the baseline's tokens"):
        check(SUBJECT)


def test_a_loop_with_extra_target_calls_fails(monkeypatch):
    def decode(target, prompts, ignore_eos, tokens, drafter=None, gamma=None):
        return SimpleNamespace(metrics=SimpleNamespace(target_calls=8 if drafter is None else 9))

    monkeypatch.setattr(decoding, "_decode", decode)
    monkeypatch.setattr(decoding, "_baseline", decoding._baseline.__wrapped__)  # others must not find this one
    with pytest.raises(CheckFailure, match="9 target calls"):
        decoding.no_extra_target_calls(DrafterSubject(Deterministic))
