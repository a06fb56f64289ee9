"""The groups of fields of a run's summary: counts, speeds, expectations of theory, and its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specdec_core.costs.machine import NOISY


@dataclass(frozen=True)
class RunCounts:
    """Sums over all repeats and prompts of a run, and the ratios that follow from them.

    Attributes:
        tokens: New tokens.
        target_calls: Forward passes of the target.
        drafted: Draft tokens proposed.
        accepted: Draft tokens accepted.
        gamma_mean: Mean number of draft tokens per step and sequence.
        levels_mean: Mean depth of the trees per step; None if drafts were lines.
        block_efficiency: Tokens per step and sequence, including the recovered or bonus token ("mean acceptance
            length" elsewhere).
        alpha: Acceptance rate E(beta): accepted over verified draft tokens; None if none was verified.
        alpha_by_position: The same at each position of the draft; section 3 assumes that all are equal.
        verified_by_position: Draft tokens verified at each position: if they are few, the rate is noise.
        steps_by_length: Steps whose longest draft had 0, 1, ... tokens, without the first step of each batch.
        deviation: Total variation from the target's distribution that lenience or a lossy rule spent per
            sequence; 0 without either.
        seconds: Wall time.
        cpu_seconds: CPU time of the decoding thread: on an idle machine, nearly the wall time. None unless the
            target is on a CPU.
        draft_seconds: The drafter's part of the wall time.
        verify_seconds: The target's part of it.
        forced: Tokens that a constraint forced, committed without being drafted; among `tokens`.
    """

    tokens: int
    target_calls: int
    drafted: int
    accepted: int
    gamma_mean: float | None
    levels_mean: float | None
    block_efficiency: float | None
    alpha: float | None
    alpha_by_position: tuple[float, ...]
    verified_by_position: tuple[int, ...]
    steps_by_length: tuple[int, ...]
    deviation: float | None
    seconds: float
    cpu_seconds: float | None
    draft_seconds: float
    verify_seconds: float
    forced: int = 0


@dataclass(frozen=True)
class RunSpeed:
    """Measured speeds and costs of a run: medians over the repeats.

    Attributes:
        c: Cost coefficient (Definition 3.7): the drafter's time for one token over that of a target call without a
            draft in the same repeat. The first step of each batch, which reads the prompts, is left out.
        verify_cost: T(k) / T(0), k = 0, 1, ...: the target's time with a draft of k tokens over that without a
            draft, measured over all runs of the task, with beams over those with the same `draft_beams`. None for
            lengths that were measured too rarely.
        draft_cost: D(k) / T(0), k = 0, 1, ...: the drafter's time for k tokens in this run.
        tokens_per_second: New tokens per second of wall time.
        tokens_per_second_min: The same in the slowest repeat.
        tokens_per_second_max: The same in the fastest repeat.
        speedup: Tokens per second over those of the baseline in the same repeat. This and the following are None
            for a run in which a plugin failed.
        speedup_min: The smallest speed-up of a repeat.
        speedup_max: The largest speed-up of a repeat.
        speedup_low: Lower end of the interval for the speed-up: the range of up to eight repeats; of more, the 95%
            confidence interval of their median. None for a single repeat.
        speedup_high: Its upper end.
        speedup_bound: The largest speed-up that is possible if no target call with a draft takes less time than
            one without: tokens per target call over those of the baseline.
    """

    c: float | None
    verify_cost: tuple[float | None, ...]
    draft_cost: tuple[float | None, ...]
    tokens_per_second: float | None
    tokens_per_second_min: float | None
    tokens_per_second_max: float | None
    speedup: float | None
    speedup_min: float | None
    speedup_max: float | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_bound: float | None


@dataclass(frozen=True)
class RunExpectation:
    """The expectation of theory for a run, and the reason for its speed.

    Attributes:
        speedup_expected: Theorem 3.8 with this run's alpha, c and mean draft length. It assumes that verifying a
            draft takes no longer than a target call without one, and that nothing but the two models takes time.
        speedup_expected_here: The speed-up to expect on this machine from the drafts as they were: with T(k) of
            all runs, this drafter's D(k), the framework's overhead, prompts and set-up.
        gamma_best: The fixed gamma that should be fastest, up to the longest draft of any run of the task; 0 if
            autoregressive decoding is. For a controller that ends drafts early, the longest draft to allow. None
            if fewer than 30 steps with a draft were timed.
        speedup_expected_best: The expected speed-up with that gamma.
        speedup_by_gamma: The expected speed-up for gamma = 0, 1, ... up to the longest draft of any run of the
            task.
        time_shares: Where the wall time went: `target`, up to the time of target calls without a draft;
            `verifying`, the target beyond that; `drafting`; `framework`, steps outside both models; `outside`,
            prompts and set-up.
        diagnosis: Why the run is as fast as it is, in a sentence; None for the baseline and for runs without
            measurements.
    """

    speedup_expected: float | None
    speedup_expected_here: float | None
    gamma_best: int | None
    speedup_expected_best: float | None
    speedup_by_gamma: tuple[float, ...]
    time_shares: Mapping[str, float] | None
    diagnosis: str | None


@dataclass(frozen=True)
class RunRequests:
    """Figures of the requests of a run, one for each prompt. `outputs.jsonl` has those of each request.

    Attributes:
        speculative_decoding: The fields of vLLM's `metrics.speculative_decoding`, over all steps of the first
            repeat; repeats have the same seeds. None for the baseline, with beams and for replays.
        percentiles: `mean`, `min`, `max` and the 10th to 99th percentile (`p10`, `p50`, `p90`, `p95`, `p99`) of
            `mean_acceptance_length` and `draft_acceptance_rate`, and of `seconds` in all repeats: from the start
            of a request's batch to its last token. Without those that were not measured.
        thinking: The same fields as `speculative_decoding` apart: `inside` for the steps that began in a thinking
            part (`<think>`), `outside` for the others. None where no answer has one.
    """

    speculative_decoding: Mapping[str, Any] | None
    percentiles: Mapping[str, Mapping[str, float]]
    thinking: Mapping[str, Any] | None = None


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
