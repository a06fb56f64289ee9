"""The acceptance of a drafter along a recorded text, whatever gamma is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec_core.decoding.guard import PluginGuard
from specdec_core.interface import AcceptanceRule, ConfigError, PluginError
from specdec_core.offline.replay.expected_counts import DraftedText, Uncached
from specdec_core.verification import SpeculativeSampling


@dataclass(frozen=True, eq=False)
class TextAcceptance:
    """Probabilities that decide on the acceptance along a recorded text of L tokens, for drafts of up to K tokens.

    Attributes:
        ratio: `[L, K]` float64. `ratio[i, j]` is q(y) / p(y) of the text's token y at position i + j, where q is
            that of token j of a draft that begins at position i and has followed the text so far. What lies beyond
            the text or the draft has no meaning.
        offered: `[L]` int64, the length of the draft that begins at each position.
        confidence: `[L, K]` float32, what a controller's `keep_drafting` would be told after each token: q of the
            text's token, and for greedy drafts the softmax probability of the argmax. NaN where it is not asked.
        tokens: `[L]` int64, the text.
        limit: The most tokens that the text could have had.
        reach: The most tokens that the text and a draft may have together: one less than the limit, since the last
            position is for the target's own token, or what the drafter's `max_length` leaves of it.
        uncached: What a recurrent target reads again; None for others.
        number: Number of the prompt.
        sample: Number of the text of this prompt.
        by_budget: The same for budgets of 1, 2, ... K tokens, for drafters whose drafts depend on it; else empty.
        least: `[L, K]` float64, the smallest q(x) / p(x) of all tokens x that p does not exclude; None where the
            record does not hold all of p.
    """

    ratio: NDArray[np.float64]
    offered: NDArray[np.int64]
    confidence: NDArray[np.float32]
    tokens: NDArray[np.int64]
    limit: int
    reach: int
    uncached: Uncached | None = None
    number: int = 0
    sample: int = 0
    by_budget: tuple[TextAcceptance, ...] = ()
    least: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def longest(self) -> int:
        """K, the longest draft that is known."""
        return int(self.ratio.shape[1])

    def room(self, position: int) -> int:
        """Return the number of tokens that may be drafted at a position."""
        return max(self.reach - position, 0)

    def asked(self, budget: int) -> TextAcceptance:
        """Return the acceptance of drafts for which a number of tokens was asked."""
        return self.by_budget[budget - 1] if self.by_budget and budget else self

    def accept(self, rule: AcceptanceRule | None = None) -> NDArray[np.float64]:
        """Return the acceptance of draft tokens, `[L, K]` float64.

        `[i, j]` is the probability that token j of a draft that begins at position i is accepted, given the text
        and that the tokens before it in the draft were.

        Args:
            rule: The acceptance rule where the target samples; None for Algorithm 1, and in greedy decoding.

        Raises:
            ConfigError: The rule takes more of p than the record holds.
            PluginError: It fails, or answers with something else than probabilities.
        """
        rule = SpeculativeSampling() if rule is None else rule
        every = rule.config.replays_from == "all"
        if every and self.least is None:
            raise ConfigError(
                f"the rule {rule_name(rule)!r} cannot be replayed on this record: what it accepts depends on p of "
                "all tokens, which the record does not hold. Record with `--keep-top K`, where K is larger than "
                "the number of tokens that the sampling settings leave at any position, or use the rule `token`."
            )
        guard = PluginGuard(strict=True)
        with guard.calling(rule):
            found = rule.acceptance_given_text(self.ratio, self.least if every else None)
            if not (np.shape(found) == self.ratio.shape and bool(((found >= 0) & (found <= 1)).all())):
                raise PluginError(
                    "acceptance_given_text() must return probabilities, from 0 to 1, in an array of the shape of "
                    "`ratio`."
                )
        return found

    def drafted(self, gamma: int, rule: AcceptanceRule | None = None) -> DraftedText:
        """Return what follows for a fixed gamma, at most K; see `accept`."""
        if not self.by_budget or not gamma:
            return DraftedText(self.accept(rule), self.offered, self.reach, self.uncached)
        # Near the limit, fewer tokens are asked for.
        budgets = np.clip(self.reach - np.arange(len(self)), 1, gamma)
        accept, offered = np.zeros(self.ratio.shape), np.zeros(len(self), dtype=np.int64)
        for budget in np.unique(budgets).tolist():
            own, here = self.asked(budget), budgets == budget
            accept[here], offered[here] = own.accept(rule)[here], own.offered[here]
        return DraftedText(accept, offered, self.reach, self.uncached)


def rule_name(rule: AcceptanceRule) -> str:
    """Return the name of an acceptance rule, as messages give it."""
    return str(getattr(rule.config, "name", type(rule).__name__))
