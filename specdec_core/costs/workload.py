"""The time of a finite amount of decoding, from acceptance by position and the seconds of measured steps.

Section 3 describes steps in the limit: it ignores prompts, the last step of a sequence, and drafts that are
shorter than requested. A benchmark meets all three. With none of them, `Workload.seconds` gives
`specdec_core.costs.forecast.improvement_at_cost`.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_core.theory.speed import expected_tokens_by_position


@dataclass(frozen=True)
class Workload:
    """The decoding that a benchmark repeats with every gamma.

    Attributes:
        tokens: New tokens.
        sequences: Sequences that they belong to.
        sequences_per_step: Mean number of sequences that are decoded in one step; at most the batch size, as the
            sequences of a batch end at different times.
        prompt_steps: Steps that read a prompt; their time is part of `fixed_seconds`.
        fixed_seconds: Time that no drafter changes: prompts and set-up.
    """

    tokens: int
    sequences: int = 0
    sequences_per_step: float = 1.0
    prompt_steps: int = 0
    fixed_seconds: float = 0.0

    def seconds(self, rates: Sequence[float], gamma: int, step_seconds: float) -> float:
        """Return the expected wall time with a fixed gamma.

        Args:
            rates: Acceptance by position, as in `expected_tokens_by_position`.
            gamma: Tokens requested per step.
            step_seconds: Mean seconds of a step in which gamma tokens are requested.
        """
        generated = self.tokens + self.sequences * overshoot(rates, gamma)
        steps = generated / expected_tokens_by_position(rates, gamma) / self.sequences_per_step
        return self.fixed_seconds + max(0.0, steps - self.prompt_steps) * step_seconds


def overshoot(rates: Sequence[float], gamma: int) -> float:
    """Return the mean number of tokens by which the last step of a sequence exceeds the end of the sequence.

    With X tokens per step this is the mean excess of a renewal process, E[X (X - 1)] / (2 E[X]), where
    E[X (X - 1)] / 2 = sum_i i P(X > i).

    Args:
        rates: Acceptance by position, as in `expected_tokens_by_position`.
        gamma: Tokens drafted per step.
    """
    reached, excess = 1.0, 0.0
    for position in range(1, gamma + 1):
        reached *= rates[min(position, len(rates)) - 1]
        excess += position * reached
    return excess / expected_tokens_by_position(rates, gamma)


def requested_seconds(step: Sequence[float], reach: Sequence[float]) -> tuple[float, ...]:
    """Return the mean seconds of a step in which 0, 1, ... K tokens are requested, where drafts may be shorter.

    Args:
        step: Seconds of a step whose longest draft has k tokens, k = 0, 1, ... at least K.
        reach: K numbers, the share of drafts that have at least 1, 2, ... K tokens when as many are requested.
    """
    seconds = [step[0]]
    for k, share in enumerate(reach, start=1):
        # Requesting one more token lengthens only the steps whose draft has it.
        seconds.append(seconds[-1] + share * (step[k] - step[k - 1]))
    return tuple(seconds)


def reach_by_length(drafted: Sequence[int], requested: Sequence[int], gamma: int) -> tuple[float, ...]:
    """Return the share of steps that drafted at least k tokens among those that requested k, k = 1 ... gamma.

    Beyond the longest draft that was ever requested, drafts end as often as at the last position.

    Args:
        drafted: Number of steps whose longest draft had 0, 1, ... tokens.
        requested: Number of steps that requested 0, 1, ... tokens.
        gamma: How many positions to return.
    """
    found: list[float] = []
    share, continues = 1.0, 1.0
    for k in range(1, gamma + 1):
        if (trials := sum(requested[k:])) > 0:
            now = min(share, sum(drafted[k:]) / trials)
            continues = now / share if share else 0.0
            share = now
        else:
            share *= continues
        found.append(share)
    return tuple(found)
