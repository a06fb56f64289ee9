"""The confidence gamma controller: stops a draft after a token the drafter was unsure of."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from specdec_core.interface import BatchInfo, GammaController, GammaSession, PluginConfig, StepReport
from specdec_plugins.gamma.settings import Cost, Count, Decay


class ConfidenceGammaConfig(PluginConfig):
    """Stops a draft when the drafter is unsure, by a given or learned threshold.

    The confidence below which a draft stops, and whether to learn it.
    """

    threshold: Annotated[float, Field(ge=0, le=1)] = 0.4
    """A draft stops after a token with q(x) below this. With `learn`, the value each sequence starts from."""
    max_gamma: Count = 16
    """The most tokens drafted in a step, whatever the confidence."""
    learn: bool = False
    """Learn the threshold of each sequence from the outcome of its drafts."""
    c: Cost = 0.05
    """For `learn`: cost coefficient c, the time of a draft token over that of a target forward pass."""
    decay: Decay = 0.98
    """For `learn`: the weight of past observations is multiplied by this in every step."""

    @model_validator(mode="after")
    def _check_learning(self) -> Self:
        for name in ("c", "decay"):
            if not self.learn and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name!r} only applies to a learned threshold; add 'learn: true' or remove it")
        return self


_BINS = 10
"""Number of confidence bins that acceptance is counted in."""


class ConfidenceGamma(GammaController):
    """Asks for `max_gamma` tokens and ends a sequence's draft after a token x with q(x) below the threshold.

    That token is still verified: it was sampled from q, and leaving it out because of its value would change the
    distribution of the tokens that remain.

    The given threshold applies to each token by itself. The one learned with `learn` estimates how often tokens of
    each confidence are accepted, hence the probability that the whole draft is accepted, and tightens along the
    draft; see `LearnedThreshold`.

    Drafters that return a whole draft at once, such as prompt-copy, are not asked token by token: they draft up to
    `max_gamma`.

    References:
        Section 3.5 of arXiv 2211.17192 suggests predicting beta and varying gamma accordingly. The fixed threshold
        is `assistant_confidence_threshold` in the Hugging Face library, 0.4 by default.
    """

    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch; every sequence starts with `threshold`."""
        session = _LearningSession if self.config.learn else _ConfidenceSession
        return session(self.config, batch.batch_size)


class _ConfidenceSession(GammaSession):
    uses_confidence: ClassVar[bool] = True

    def __init__(self, config: ConfidenceGammaConfig, batch_size: int) -> None:
        self._gammas = (config.max_gamma,) * batch_size
        self._thresholds = [config.threshold] * batch_size

    def plan(self) -> Sequence[int]:
        return self._gammas

    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        return [value >= threshold for value, threshold in zip(confidence, self._thresholds, strict=True)]


class _LearningSession(_ConfidenceSession):
    def __init__(self, config: ConfidenceGammaConfig, batch_size: int) -> None:
        super().__init__(config, batch_size)
        self._rows = [LearnedThreshold(config.threshold, config.c, config.decay) for _ in range(batch_size)]

    def plan(self) -> Sequence[int]:
        for row in self._rows:
            row.begin()
        return super().plan()

    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        return [row.keep_drafting(value) for row, value in zip(self._rows, confidence, strict=True)]

    def observe(self, report: StepReport) -> None:
        outcomes = zip(self._rows, report.outcome.drafted, report.verified, report.outcome.accepted, strict=True)
        for row, drafted, verified, accepted in outcomes:
            row.learn(drafted, verified, accepted)


class LearnedThreshold:
    """Decides for one sequence whether to draft on, and learns from the outcome of its drafts.

    One more token is useful if it and all tokens before it are accepted. It takes the time of c target forward
    passes, in which S c tokens would otherwise be produced, where S is the current number of tokens per target
    pass. So it pays while

        a(q_1) a(q_2) ... a(q_n) alpha > S c

    with q_i the confidence of the tokens drafted so far, a(q) the acceptance rate at confidence q, and alpha the
    acceptance rate of any token. This looks one token ahead: it ignores that one more token makes further ones
    possible.

    a is estimated in ten bins of q from the verified tokens. S, alpha and a are moving averages. Each bin starts
    with one token, accepted at or above the given threshold and rejected below it, so the first draft follows the
    given threshold, and so do later ones wherever nothing else is known.

    Args:
        threshold: Initial threshold, rounded up to a bin.
        c: Cost coefficient.
        decay: Factor on the weight of past observations, per step.

    References:
        Theorem 3.8 and section 3.5 of arXiv 2211.17192, with an acceptance rate per token.
    """

    def __init__(self, threshold: float, c: float, decay: float) -> None:
        self._c = c
        self._decay = decay
        first = math.ceil(threshold * _BINS - 1e-9)
        self._verified = [1.0] * _BINS
        self._accepted = [float(index >= first) for index in range(_BINS)]
        self._rates = list(self._accepted)
        self._tokens = self._passes = 0.0
        self._price = 0.0
        self.begin()

    def begin(self) -> None:
        """Start a draft."""
        self._bins: list[int] = []
        self._survival = 1.0

    def keep_drafting(self, confidence: float) -> bool:
        """Return whether to draft on after a token with this q(x); NaN if none was drafted."""
        if math.isnan(confidence):
            return False
        index = min(int(confidence * _BINS), _BINS - 1)
        self._bins.append(index)
        self._survival *= self._rates[index]
        return self._survival > self._price

    def learn(self, drafted: int, verified: int, accepted: int) -> None:
        """Update the estimates with the outcome of a draft.

        Args:
            drafted: Number of draft tokens.
            verified: Number of draft tokens that were verified.
            accepted: Number of those that were accepted.
        """
        # In a chain, the verified tokens may be another drafter's than the ones seen here: nothing to learn then.
        if not verified or len(self._bins) != drafted:
            return
        decay = self._decay
        self._verified = [decay * count for count in self._verified]
        self._accepted = [decay * count for count in self._accepted]
        for position, index in enumerate(self._bins[:verified]):
            self._verified[index] += 1
            self._accepted[index] += position < accepted
        pairs = zip(self._accepted, self._verified, strict=True)
        self._rates = [hits / count if count else 0.0 for hits, count in pairs]
        self._tokens = decay * self._tokens + accepted + 1
        self._passes = decay * self._passes + 1 + self._c * drafted
        alpha = sum(self._accepted) / sum(self._verified)
        self._price = self._c * self._tokens / self._passes / alpha if alpha else math.inf
