"""What no controller can bring about through the border, the checks of the decoding loop must see all the same."""

from __future__ import annotations

import pytest

from specdec_core.settings import SamplingSettings
from specdec_core.testing import CheckFailure, named, subject_of
from specdec_core.testing.instruments.courses import RowScript, Script, script
from specdec_core.testing.instruments.enumeration import continuations
from specdec_core.testing.instruments.world import world
from specdec_core.testing.judging import controller_decoding as decoding
from tests.testing.defects import healthy


def lenient(value):
    return named("lenience", "constant", {"lenience": value})


def test_another_distribution_is_seen(monkeypatch):
    sharper = SamplingSettings(temperature=0.8)
    other = continuations(world().target, sharper, length=decoding.LENGTH)
    monkeypatch.setattr(decoding, "exact", lambda device: other)
    with pytest.raises(CheckFailure, match="chi-square"):
        decoding.require_lossless(subject_of("gamma", healthy.Following))


def test_other_tokens_by_argmax_are_seen():
    with pytest.raises(CheckFailure, match="the tokens of plain decoding"):
        decoding.require_argmax(lenient(0.01))


def test_a_token_below_the_rule_is_seen(monkeypatch):
    decoding.require_argmax_rule(lenient(0.2))
    monkeypatch.setattr(decoding, "_place", lambda row, place: 0.9)
    with pytest.raises(CheckFailure, match=r"p\(x\) >= l max p"):
        decoding.require_argmax_rule(lenient(0.2))


def test_a_report_is_one_that_the_core_could_make():
    rows = (RowScript(1, room=9), RowScript(2, room=60, ends=0.1), RowScript(3, room=60))
    course = subject_of("gamma", healthy.Confident).course(Script(rows)).play(80)
    assert course.done
    for report in course.reports:
        for asked, drafted, accepted, new, judged in zip(
            report.asked, report.drafted, report.accepted, report.committed, report.judged, strict=True
        ):
            assert asked >= drafted >= accepted
            assert len(new) <= accepted + 1
            assert judged <= drafted
    for index, row in enumerate(rows):
        assert sum(len(report.committed[index]) for report in course.reports) <= row.room


def test_a_row_lives_by_its_own_numbers():
    alone = subject_of("lenience", healthy.Lenient).course(script(5, room=90)).play(30)
    beside = subject_of("lenience", healthy.Lenient).course(script(5, 6, room=90)).play(30)
    assert [report.committed[0] for report in alone.reports] == [report.committed[0] for report in beside.reports]
    assert {report.accepted[0] for report in alone.reports} > {0, 1}
