"""Confidence: a draft ends behind a token of which the drafter was not sure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from specdec_core.border import BatchInfo, GammaController, GammaSession, StepReport
from specdec_plugins.configs import ConfidenceGammaConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

_BINS = 10
"""How many confidences are told apart when the threshold is learnt."""


class ConfidenceGamma(GammaController):
    """Asks for `most` tokens, and ends a row's draft behind a token x with q(x) below the threshold.

    That token is verified too: it was drawn from q, and who left it out for what it is would change the
    distribution of those that are kept.

    The threshold that is given holds for each token by itself. One that is learnt, with `learn`, knows how often
    tokens of some confidence are accepted, and so the chance that the whole draft will be: it rises along the
    draft; see `LearntThreshold`.

    Drafters that propose finished drafts, as prompt-copy does, are not asked token by token: they draft up to
    `most`.

    References:
        Section 3.5 of arXiv 2211.17192, which suggests to predict beta and to vary gamma accordingly; the fixed
        threshold is the Hugging Face library's `assistant_confidence_threshold`, of 0.4 by default.
    """

    Config = ConfidenceGammaConfig

    @property
    def max_gamma(self) -> int:
        """The most tokens it will ever ask for."""
        return int(self.config.most)

    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch; every row begins with `threshold`."""
        session = _LearningSession if self.config.learn else _ConfidenceSession
        return session(self.config, batch.batch_size)


class _ConfidenceSession(GammaSession):
    watches_confidence: ClassVar[bool] = True

    def __init__(self, config: ConfidenceGammaConfig, batch_size: int) -> None:
        self._gammas = (config.most,) * batch_size
        self._thresholds = [config.threshold] * batch_size

    def gamma(self) -> Sequence[int]:
        return self._gammas

    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        return [value >= least for value, least in zip(confidence, self._thresholds, strict=True)]


class _LearningSession(_ConfidenceSession):
    """One batch of rows that learn their thresholds."""

    def __init__(self, config: ConfidenceGammaConfig, batch_size: int) -> None:
        super().__init__(config, batch_size)
        self._rows = [LearntThreshold(config.threshold, config.c, config.memory) for _ in range(batch_size)]

    def gamma(self) -> Sequence[int]:
        for row in self._rows:
            row.begin()
        return super().gamma()

    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        return [row.drafts_on(value) for row, value in zip(self._rows, confidence, strict=True)]

    def observe(self, report: StepReport) -> None:
        outcomes = zip(self._rows, report.drafted, report.judged, report.accepted, strict=True)
        for row, drafted, judged, accepted in outcomes:
            row.learn(drafted, judged, accepted)


class LearntThreshold:
    """Decides for one row whether a draft goes on, and learns from what becomes of it.

    A further token is of use if it is accepted, and all before it. It takes a time of c target calls, in which S c
    tokens would come otherwise, with S the tokens that the time of a target call brings now. So it pays where

        a(q_1) a(q_2) ... a(q_n) alpha > S c

    with q_i the confidence in the tokens drafted so far, a(q) the acceptance of tokens of that confidence, and
    alpha that of any. This looks one token ahead: that a further one may open the way to others is left out.

    a is counted, in tenths of q, over the tokens that were judged. S, alpha and a are running averages. Each tenth
    begins with one token, accepted in those above the threshold that was given, and rejected in those below, so
    that the first draft goes by this threshold, and later ones do where nothing else is known.

    Args:
        threshold: What it begins with, rounded up to tenths.
        c: Cost coefficient.
        memory: What remains of the weight of all counts after a step.

    References:
        Theorem 3.8 and section 3.5 of arXiv 2211.17192, with an acceptance for each token.
    """

    def __init__(self, threshold: float, c: float, memory: float) -> None:
        self._c = c
        self._memory = memory
        first = math.ceil(threshold * _BINS - 1e-9)
        self._judged = [1.0] * _BINS
        self._accepted = [float(tenth >= first) for tenth in range(_BINS)]
        self._rates = list(self._accepted)
        self._tokens = self._calls = 0.0
        self._price = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin a draft."""
        self._tenths: list[int] = []
        self._chance = 1.0

    def drafts_on(self, confidence: float) -> bool:
        """Return whether to draft on behind a token with this q(x); NaN where none was drafted."""
        if math.isnan(confidence):
            return False
        tenth = min(int(confidence * _BINS), _BINS - 1)
        self._tenths.append(tenth)
        self._chance *= self._rates[tenth]
        return self._chance > self._price

    def learn(self, drafted: int, judged: int, accepted: int) -> None:
        """Learn what became of a draft.

        Args:
            drafted: How many tokens it had.
            judged: How many of them were judged.
            accepted: How many of those were accepted.
        """
        # In a chain, another drafter's tokens may have been verified than were drawn: of those nothing is known.
        if not judged or len(self._tenths) != drafted:
            return
        memory = self._memory
        self._judged = [memory * count for count in self._judged]
        self._accepted = [memory * count for count in self._accepted]
        for place, tenth in enumerate(self._tenths[:judged]):
            self._judged[tenth] += 1
            self._accepted[tenth] += place < accepted
        pairs = zip(self._accepted, self._judged, strict=True)
        self._rates = [kept / count if count else 0.0 for kept, count in pairs]
        self._tokens = memory * self._tokens + accepted + 1
        self._calls = memory * self._calls + 1 + self._c * drafted
        alpha = sum(self._accepted) / sum(self._judged)
        self._price = self._c * self._tokens / self._calls / alpha if alpha else math.inf
