"""What a replayed run was replayed on, and its expected counts."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_core.costs.machine import NOISY


@dataclass(frozen=True)
class ReplayedOn:
    """The record of a replayed run, and the certainty of its numbers.

    Intervals are 95% confidence intervals over texts of other prompts like these: texts are clustered by prompt,
    and those of a conversation together.

    Attributes:
        record: The record.
        texts: Number of its texts that were replayed.
        prompts: Number of their prompts; a conversation counts as one.
        tokens: Number of their tokens.
        machine: The machine whose seconds are expected; None if no seconds are known.
        low: Lower end of the interval of block efficiency; None with a single prompt.
        high: Its upper end.
        drawn: Standard error of block efficiency that is due to drawing what is accepted, for controllers of gamma
            that are replayed step by step; None where the expectation is exact.
        speedup_low: Lower end of the interval of the expected speed-up; None without seconds.
        speedup_high: Its upper end.
        speedup_by_gamma: The expected speed-up with gamma = 0, 1, ...; empty without seconds.
        noise: How well the seconds of a step are known, as a fraction; see `specdec_core.costs.StepCosts.noise`.
            The intervals leave it out. None if it is not known, or without seconds.
    """

    record: str
    texts: int
    prompts: int
    tokens: int
    machine: str | None = None
    low: float | None = None
    high: float | None = None
    drawn: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_by_gamma: tuple[float, ...] = ()
    noise: float | None = None

    @property
    def noisy(self) -> bool:
        """Whether the seconds of a step are known too badly to tell runs apart that are nearly as fast."""
        return self.noise is not None and self.noise > NOISY


@dataclass(frozen=True, slots=True)
class PromptCounts:
    """The expected counts of a replayed run for the texts of one prompt.

    Attributes:
        number: Number of the prompt, from 0.
        tokens: Tokens of its texts.
        steps: Forward passes of the target.
        accepted: Accepted draft tokens.
        verified: Verified draft tokens: those up to the first rejection of a draft.
        seconds: Seconds; None if no times of a machine are known.
    """

    number: int
    tokens: float
    steps: float
    accepted: float
    verified: float
    seconds: float | None
