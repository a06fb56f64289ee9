"""The budgeted lenience controller: spends a given total variation per sequence where acceptance is worth most."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from specdec_core.interface import BatchInfo, LenienceConfig, LenienceController, LenienceSession, StepReport
from specdec_plugins.lenience.constant import Lenience


class BudgetedLenienceConfig(LenienceConfig):
    """Spends a given deviation from the target per sequence, where it gains most.

    How far a text may deviate from the target's distribution.
    """

    max_deviation: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """The most total variation per sequence; in greedy decoding, the most tokens that may differ from the argmax.
    0 is lossless."""
    min_lenience: Lenience = 0.1
    """The smallest l: no token becomes more than 1 / min_lenience times as probable."""
    expected_length: Annotated[int, Field(ge=1)] | None = None
    """New tokens to spread the budget over; by default the longest a text may get. Set it if texts end earlier."""

    @property
    def lossless(self) -> bool:
        """Whether nothing may be spent."""
        return self.max_deviation == 0 or self.min_lenience == 1


_ROUNDING = 1e-5
"""Held back from a budget: sums in float32 may exceed the proven bound by a little."""

_GREEDY_FACTOR = 3.0
"""In greedy decoding, opportunities come at random: spend as if the budget left were this many times as large."""

# Prior of a sequence: this many steps with this many tokens each, and this acceptance rate (far positions are
# hardly ever verified); and the deviation of a position per unit of 1 - l, with its weight in such units.
_PRIOR_STEPS = 2.0
_PRIOR_TOKENS_PER_STEP = 2.5
_PRIOR_ACCEPTANCE = 0.7
_MIN_PRIOR = 1e-9
_PRIOR_RATE = 0.25
_PRIOR_RATE_WEIGHT = 1.0


class BudgetedLenience(LenienceController):
    """Spends at most `max_deviation` per sequence, on the first position of a draft first.

    A unit of acceptance costs a unit of total variation at every position, but at position i it is worth
    1 + a_{i+1} + a_{i+1} a_{i+2} + ... tokens, most at the first. So the first position takes what it can, with l
    down to `min_lenience`, the second one what is left, and so on. The budget is spread evenly over the text. A
    verified position spends about r (1 - l); r is learned per sequence from the reports.

    The budget holds for every sequence, not just on average: a position spends at most 1 / l - 1 and at most 1 (in
    greedy decoding, 1 if l < 1), and the sum of these bounds never exceeds what is left.

    References:
        Appendix A.5 of arXiv 2211.17192 for l; the budget is not in the paper.
    """

    def open(self, batch: BatchInfo) -> LenienceSession:
        """Start a batch."""
        return _BudgetedSession([_Account(self.config, batch, room) for room in batch.room])


class _BudgetedSession(LenienceSession):
    def __init__(self, accounts: "Sequence[_Account]") -> None:
        self._accounts = accounts

    def lenience(self) -> Sequence[Sequence[float]]:
        return [account.leniences() for account in self._accounts]

    def observe(self, report: StepReport) -> None:
        rows = zip(self._accounts, report.verified, report.outcome.committed, report.deviation, strict=True)
        for account, verified, new, deviation in rows:
            account.book(verified, len(new), deviation)


class _Account:
    """The budget of one sequence, and estimates of its further spending."""

    def __init__(self, config: BudgetedLenienceConfig, batch: BatchInfo, room: int) -> None:
        self._greedy = batch.greedy
        self._left = config.max_deviation - (0 if batch.greedy else _ROUNDING)
        self._min_lenience = config.min_lenience
        self._factor = _GREEDY_FACTOR if batch.greedy else 1.0
        self._length = min(room, config.expected_length or room)
        self._tokens = 0
        # How often each position was verified, and the sum of 1 - l over those that were.
        self._verified = [
            _PRIOR_STEPS * max(_PRIOR_ACCEPTANCE**position, _MIN_PRIOR) for position in range(batch.max_gamma)
        ]
        self._weight, self._spent = _PRIOR_RATE_WEIGHT, _PRIOR_RATE * _PRIOR_RATE_WEIGHT
        self._shares: list[float] = []

    def leniences(self) -> list[float]:
        """Return l of each position of the next draft, with 1 after the last lenient one."""
        self._shares = self._choose()
        return [*(max(1 - share, self._min_lenience) for share in self._shares), 1.0]

    def _choose(self) -> list[float]:
        """Return 1 - l of the lenient positions, from the first on."""
        shares: list[float] = []
        most, allowed = 1 - self._min_lenience, self._left
        expected = allowed * self._factor
        rest = max(self._length - self._tokens, 1) / (self._tokens + _PRIOR_STEPS * _PRIOR_TOKENS_PER_STEP)
        each = rest * self._spent / self._weight
        for verified in self._verified:
            # Expected deviation at this position for the rest of the text, per unit of 1 - l.
            price = verified * each
            share = min(most, expected / price)
            if allowed < 1:  # a position could exceed what is left: it spends at most 1 / l - 1, or one token
                share = 0.0 if self._greedy else min(share, allowed / (1 + allowed))
            if share <= 0:
                break
            shares.append(share)
            expected -= share * price
            allowed -= 1.0 if self._greedy or share >= 0.5 else share / (1 - share)
        return shares

    def book(self, verified: int, tokens: int, deviation: float) -> None:
        """Record a step: positions verified, tokens committed, total variation spent."""
        self._left -= deviation
        self._tokens += tokens
        self._spent += deviation
        self._weight += sum(self._shares[:verified])
        for position in range(verified):
            self._verified[position] += 1
