"""The effect of a lenience controller on the texts of a small model, computed exactly.

Written apart from the decoding loop: every draft, every verdict and every end of a row is written out with its
probability, and the controller's own session is told of each as a batch of one.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import torch

from specdec_core.interface import BatchInfo, LenienceController, LenienceSession, Outcome, StepReport
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import LoadedModel
from tests.lossless import EOS, PROMPT, VOCAB, next_token
from tests.toys import TableDrafter

Text = tuple[int, ...]


@dataclass
class TextDistribution:
    """Texts with their probability, and what their decoding comes to.

    Attributes:
        texts: The probability of each.
        spent: Total variation spent in a text, on average.
        most: In the worst case.
        judged: Draft tokens judged in a text, on average.
        kept: Draft tokens kept in a text, on average.
    """

    texts: dict[Text, float] = field(default_factory=dict)
    spent: float = 0.0
    most: float = 0.0
    judged: float = 0.0
    kept: float = 0.0

    def after(self, prefix: Text) -> torch.Tensor:
        """Return the distribution of the token after a prefix, `[V]`."""
        found = torch.zeros(VOCAB, dtype=torch.float64)
        for text, weight in self.texts.items():
            if len(text) > len(prefix) and text[: len(prefix)] == prefix:
                found[text[len(prefix)]] += weight
        return found / found.sum()

    def prefixes(self) -> set[Text]:
        """Return every prefix after which a token is written."""
        return {text[:end] for text in self.texts for end in range(len(text))}


@cache
def _p(target: LoadedModel, text: Text) -> torch.Tensor:
    """Return the target's distribution after a text; enumerations of one target share it."""
    return next_token(target, [*PROMPT, *text], SamplingSettings())


@dataclass(frozen=True)
class _Outcome:
    new: Text
    kept: int
    weight: float
    deviation: float


class Enumeration:
    """Works out the distribution of one target, drafter, controller and setting.

    Args:
        target: The model.
        drafter: Drafts from its table, at temperature 1.
        controller: Of lenience.
        gammas: Draft lengths of the steps, repeated.
        length: The most new tokens.
        greedy: Whether the target's token is the most probable one.
    """

    def __init__(
        self,
        target: LoadedModel,
        drafter: TableDrafter,
        controller: LenienceController,
        gammas: tuple[int, ...],
        length: int,
        *,
        greedy: bool,
    ) -> None:
        self._target, self._drafter = target, drafter
        self._gammas, self._length, self._argmax = gammas, length, greedy
        self.distribution = TextDistribution()
        info = BatchInfo(1, max(gammas), (length,), greedy)
        self._step((), 1.0, 0.0, controller.open(info), 0)

    def p(self, text: Text) -> torch.Tensor:
        """Return the target's distribution after a text, before any greedy."""
        return _p(self._target, text)

    def _q(self, text: Text) -> torch.Tensor:
        last = [*PROMPT, *text][-1]
        return torch.softmax(self._drafter.table[last].double(), dim=0)

    def _step(self, text: Text, weight: float, spent: float, session: LenienceSession, number: int) -> None:
        gamma = min(self._gammas[(number + 1) % len(self._gammas)], self._length - len(text) - 1)
        (said,) = session.lenience()
        each = [said] if isinstance(said, float) else list(said)
        each += each[-1:] * gamma
        for outcome in self._outcomes(text, each[:gamma], 0):
            new = outcome.new[: outcome.new.index(EOS) + 1] if EOS in outcome.new else outcome.new
            longer, share = text + new, weight * outcome.weight
            kept, sum_spent = min(outcome.kept, len(new)), spent + outcome.deviation
            done = EOS in new or len(longer) == self._length
            judged = kept + int(kept < gamma and len(new) > kept)
            self.distribution.judged += share * judged
            self.distribution.kept += share * kept
            self.distribution.spent += share * outcome.deviation
            self.distribution.most = max(self.distribution.most, sum_spent)
            if done:
                self.distribution.texts[longer] = self.distribution.texts.get(longer, 0.0) + share
                continue
            following = copy.deepcopy(session)
            # The draft is told as far as it was kept: no lenience controller looks at it.
            one = (
                (gamma,),
                Outcome((gamma,), (kept,), (new,), (done,)),
                (new,),
                0.0,
                0.0,
                0.0,
                (outcome.deviation,),
            )
            following.observe(StepReport(number, *one))
            self._step(longer, share, sum_spent, following, number + 1)

    def _outcomes(self, text: Text, leniences: list[float], kept: int) -> Iterator[_Outcome]:
        """Yield what a step may write after a text; `kept` draft tokens stand there already."""
        p = self.p(text)
        best = torch.nn.functional.one_hot(p.argmax(), VOCAB).double()
        if not leniences:
            yield from self._ends(text, best if self._argmax else p, 1.0, kept, 0.0)
            return
        q, lenience = self._q(text), leniences[0]
        if self._argmax:
            keep = q * ((p >= lenience * p.max()) if lenience < 1 else (best > 0))
            rest, cost = best, 0.0
        else:
            keep, rest = torch.minimum(p / lenience, q), (p - q).clamp(min=0)
            cost = float((keep - torch.minimum(p, q)).sum())
        for token in range(VOCAB):
            if keep[token] == 0:
                continue
            own = float(best[token] == 0) if self._argmax else cost
            if token == EOS:
                yield _Outcome((*text[len(text) - kept :], token), kept + 1, float(keep[token]), own)
                continue
            for later in self._outcomes((*text, token), leniences[1:], kept + 1):
                yield _Outcome(later.new, later.kept, float(keep[token]) * later.weight, own + later.deviation)
        refused = 1 - float(keep.sum())
        if refused > 1e-12:
            yield from self._ends(text, rest / rest.sum(), refused, kept, cost)

    @staticmethod
    def _ends(text: Text, rest: torch.Tensor, weight: float, kept: int, cost: float) -> Iterator[_Outcome]:
        for token in range(VOCAB):
            if rest[token] > 0:
                new = (*text[len(text) - kept :], token)
                yield _Outcome(new, kept, weight * float(rest[token]), cost)
