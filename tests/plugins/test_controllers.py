"""The fixed gamma and the constant lenience."""

from __future__ import annotations

import pytest

from specdec_core.interface import BatchInfo, Outcome, StepReport
from specdec_core.interface.controllers import FixedGamma, FixedGammaConfig
from specdec_plugins.lenience.constant import ConstantLenience, ConstantLenienceConfig

BATCH = BatchInfo(batch_size=2, max_gamma=7, room=(64, 64), greedy=False)
REPORT = StepReport(
    0,
    (5, 5),
    Outcome((5, 5), (0, 5), ((1,), (1, 2, 3, 4, 5, 6)), (False, False)),
    ((), ()),
    0.1,
    0.1,
    0.2,
    (0.0, 0.0),
)


@pytest.mark.parametrize("gamma", [0, 1, 7])
def test_gamma_is_what_was_said_in_every_step(gamma):
    controller = FixedGamma(FixedGammaConfig(gamma=gamma))
    session = controller.open(BATCH)
    assert controller.max_gamma == gamma
    assert list(session.plan()) == [gamma, gamma]
    session.observe(REPORT)
    assert list(session.plan()) == [gamma, gamma]
    assert not session.uses_confidence


@pytest.mark.parametrize("lenience", [1.0, 0.15])
def test_lenience_is_what_was_said_in_every_step(lenience):
    session = ConstantLenience(ConstantLenienceConfig(lenience=lenience)).open(BATCH)
    assert list(session.lenience()) == [lenience, lenience]
    session.observe(REPORT)
    assert list(session.lenience()) == [lenience, lenience]


def test_lenience_is_lossless_unless_said():
    assert ConstantLenienceConfig().lenience == 1
