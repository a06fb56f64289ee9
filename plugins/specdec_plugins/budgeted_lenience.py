"""The budgeted lenience: a stated total variation for each sequence, spent where an acceptance is worth most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.border import BatchInfo, LenienceController, LenienceSession, StepReport
from specdec_plugins.configs import BudgetedLenienceConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROUNDING = 1e-5
"""What is held back of a budget: float32 sums may come out a little above the bound that is proved."""

_HASTE = 3.0
"""Where decoding is argmax, chances come at random: it spends as if so many times the budget were left."""

# What is believed of a row before it has been seen: so many steps with so many tokens each, and acceptance (far
# positions are judged hardly ever); what a position spends for each unit of 1 - l, weighed as so many units.
_STEPS = 2.0
_TOKENS_A_STEP = 2.5
_KEPT = 0.7
_HARDLY = 1e-9
_RATE = 0.25
_RATE_WEIGHT = 1.0


class BudgetedLenience(LenienceController):
    """Spends at most `deviation` in each sequence: on the first position of the draft, then on those behind.

    A unit of acceptance costs a unit of total variation at every position (see `specdec_core.lenience`), but it is
    worth 1 + a_{i+1} + a_{i+1} a_{i+2} + ... tokens at position i: most at the first. So the first position takes
    what it can, l going down to `least`, and the second what is left then. The budget is spread evenly over the
    text. A judged position spends about r (1 - l); r is learnt from the reports, row by row.

    The budget is kept in every sequence, and not only on average: a position spends at most 1 / l - 1 and at
    most 1 (where decoding is argmax, 1 if l < 1), and these sums never exceed what is left.

    References:
        Appendix A.5 of arXiv 2211.17192 for l; the budget is not in the paper.
    """

    Config = BudgetedLenienceConfig

    def open(self, batch: BatchInfo) -> LenienceSession:
        """Begin a batch."""
        return _BudgetedSession([_Account(self.config, batch, room) for room in batch.room])


class _BudgetedSession(LenienceSession):
    def __init__(self, accounts: Sequence[_Account]) -> None:
        self._accounts = accounts

    def lenience(self) -> Sequence[Sequence[float]]:
        return [account.leniences() for account in self._accounts]

    def observe(self, report: StepReport) -> None:
        rows = zip(self._accounts, report.judged, report.committed, report.deviation, strict=True)
        for account, judged, new, deviation in rows:
            account.book(judged, len(new), deviation)


class _Account:
    """What one row has spent, and what may be expected of it."""

    def __init__(self, config: BudgetedLenienceConfig, batch: BatchInfo, room: int) -> None:
        self._argmax = batch.argmax
        self._left = config.deviation - (0 if batch.argmax else _ROUNDING)
        self._least = config.least
        self._haste = _HASTE if batch.argmax else 1.0
        self._length = min(room, config.length or room)
        self._tokens = 0
        # How often each position was judged, and the sum of 1 - l over all that were.
        self._judged = [_STEPS * max(_KEPT**place, _HARDLY) for place in range(batch.max_gamma)]
        self._weight, self._spent = _RATE_WEIGHT, _RATE * _RATE_WEIGHT
        self._shares: list[float] = []

    def leniences(self) -> list[float]:
        """Return l of each position of the next draft, strict from the last one on."""
        self._shares = self._choose()
        return [*(max(1 - share, self._least) for share in self._shares), 1.0]

    def _choose(self) -> list[float]:
        """Return 1 - l of the positions that are judged leniently, from the first on."""
        shares: list[float] = []
        most, allowed = 1 - self._least, self._left
        expected = allowed * self._haste
        rest = max(self._length - self._tokens, 1) / (self._tokens + _STEPS * _TOKENS_A_STEP)
        each = rest * self._spent / self._weight
        for judged in self._judged:
            # Spent at this position from here to the end of the text, for each unit of 1 - l.
            price = judged * each
            share = min(most, expected / price)
            if allowed < 1:  # a position could spend more than is left: it spends at most 1 / l - 1, or a token
                share = 0.0 if self._argmax else min(share, allowed / (1 + allowed))
            if share <= 0:
                break
            shares.append(share)
            expected -= share * price
            allowed -= 1.0 if self._argmax or share >= 0.5 else share / (1 - share)
        return shares

    def book(self, judged: int, tokens: int, deviation: float) -> None:
        """Take in what a step did: positions judged, tokens committed, total variation spent."""
        self._left -= deviation
        self._tokens += tokens
        self._spent += deviation
        self._weight += sum(self._shares[:judged])
        for place in range(judged):
            self._judged[place] += 1
