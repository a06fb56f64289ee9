"""Shared by the benchmarks against transformers: the same work for both libraries, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from _common import ratios, spread

from specdec_core import default_registry
from specdec_core.decoding.counts import Metrics
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import Drafter
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel
from specdec_core.models.device import synchronize
from specdec_core.theory.speed import walltime_improvement

BASELINE, ASSISTED, LOOKUP = METHODS = ("baseline", "assisted", "lookup")
"""Autoregressive decoding, a draft model, and copying from the prompt."""


@dataclass(frozen=True)
class Work:
    """The prompts and settings that both libraries decode with.

    Attributes:
        batches: Token ids of the prompts that are decoded together.
        tokens: New tokens of each prompt.
        gamma: Tokens drafted in a step.
        temperature: 0 for greedy decoding.
    """

    batches: Sequence[Sequence[Sequence[int]]]
    tokens: int
    gamma: int
    temperature: float

    @property
    def batch_size(self) -> int:
        """Prompts decoded together."""
        return len(self.batches[0])


def batches_of(prompts: Sequence[Sequence[int]], size: int) -> list[Sequence[Sequence[int]]]:
    """Group prompts; a remainder that does not fill a batch is left out."""
    return [prompts[first : first + size] for first in range(0, len(prompts) - size + 1, size)]


class Cell:
    """One library with one method: a call decodes all batches and returns the number of new tokens.

    Attributes:
        tokens: New tokens of each call.
        passes: Forward passes of the target in each call, times the sequences in each.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.tokens: list[int] = []
        self.passes: list[int] = []

    @property
    def block_efficiency(self) -> float:
        """Tokens for each forward pass and sequence, over all calls but the first."""
        return sum(self.tokens[1:]) / sum(self.passes[1:])


class SpecdecCell(Cell):
    """specdec: each call draws with other seeds.

    Args:
        work: What to decode.
        target: The target.
        drafter: The drafter, or None for the baseline.

    Attributes:
        metrics: Counts and times of each call.
    """

    def __init__(self, work: Work, target: LoadedModel, drafter: Drafter | None) -> None:
        super().__init__(work)
        sampling = SamplingSettings(temperature=work.temperature)
        gamma = None if drafter is None else work.gamma
        self._decoder = Decoder(target, drafter, gamma=gamma, sampling=sampling, strict=True)
        self.metrics: list[Metrics] = []

    def __call__(self) -> int:
        settings = GenerationSettings(max_new_tokens=self.work.tokens, ignore_eos=True, seed=len(self.metrics))
        results = [self._decoder.generate(batch, settings) for batch in self.work.batches]
        total = Metrics.total(result.metrics for result in results)
        self.metrics.append(total)
        self.tokens.append(sum(len(one.tokens) for result in results for one in result))
        self.passes.append(total.row_steps)
        return self.tokens[-1]

    @property
    def total(self) -> Metrics:
        """The metrics of all calls but the first, which warms up."""
        return Metrics.total(self.metrics[1:])


class TransformersCell(Cell):
    """`generate` of transformers, which draws from torch's own generator.

    Args:
        work: What to decode.
        target: The target, neither packed nor compiled.
        **method: What chooses the method: see `transformers_methods`.
    """

    def __init__(self, work: Work, target: LoadedModel, **method: Any) -> None:
        super().__init__(work)
        self._target, self._method = target, method
        if work.temperature:
            # Without the top-k of 50 that `generate` adds.
            self._method |= {"do_sample": True, "temperature": work.temperature, "top_k": 0, "top_p": 1.0}
        else:
            self._method |= {"do_sample": False}
        # As `ignore_eos` in specdec: all methods decode the same number of tokens.
        target.model.generation_config.eos_token_id = None

    def __call__(self) -> int:
        passes = 0

        def count(*_: Any) -> None:
            nonlocal passes
            passes += 1

        hook = self._target.model.register_forward_pre_hook(count)
        try:
            self.tokens.append(sum(map(self._decode, self.work.batches)))
        finally:
            hook.remove()
        synchronize(self._target.device)
        self.passes.append(passes * self.work.batch_size)
        return self.tokens[-1]

    def _decode(self, batch: Sequence[Sequence[int]]) -> int:
        longest = max(map(len, batch))
        padding = [longest - len(ids) for ids in batch]
        rows = [[0] * pad + list(ids) for pad, ids in zip(padding, batch, strict=True)]
        mask = [[0] * pad + [1] * len(ids) for pad, ids in zip(padding, batch, strict=True)]
        device = self._target.device
        output = self._target.model.generate(
            torch.tensor(rows, device=device),
            attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=self.work.tokens,
            pad_token_id=0,
            **self._method,
        )
        return int((output.shape[1] - longest) * len(batch))


def transformers_methods(work: Work, assistant: LoadedModel) -> dict[str, dict[str, Any]]:
    """Return the arguments of `generate` for each method it has.

    It has no batches with an assistant or prompt lookup. Gamma is constant, without a confidence threshold.
    """
    if work.batch_size > 1:
        return {BASELINE: {}}
    config = assistant.model.generation_config
    config.eos_token_id = None
    config.num_assistant_tokens = work.gamma
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0
    return {
        BASELINE: {},
        ASSISTED: {"assistant_model": assistant.model},
        LOOKUP: {"prompt_lookup_num_tokens": work.gamma, "max_matching_ngram_size": 2},
    }


def drafter_of(name: str, target: LoadedModel, **settings: Any) -> Drafter:
    """Return an installed drafter."""
    registry = default_registry()
    drafter: Drafter = registry.create(
        "drafter", name, registry.spec("drafter", name).config(**settings), target.info()
    )
    return drafter


def compared(
    ours: tuple[SpecdecCell, Sequence[float]],
    theirs: tuple[TransformersCell, Sequence[float]],
    baseline: Metrics,
    floor: float,
) -> dict[str, Any]:
    """Return a row: rates of both, the floor, theory, and the gap between floor and measurement.

    Args:
        ours: specdec, and the seconds of each call but the first.
        theirs: transformers, likewise.
        baseline: Counts and times of specdec's baseline on the same target.
        floor: Seconds to read the target's weights once.
    """
    (cell, seconds), (other, _) = ours, theirs
    rates, others = (
        [count / each for count, each in zip(one.tokens[1:], spent, strict=True)] for one, spent in (ours, theirs)
    )
    theory = predicted(cell.total, baseline)
    return {
        "specdec_tokens_per_second": spread(rates, 2),
        "transformers_tokens_per_second": spread(others, 2),
        "ratio": ratios(rates, others),
        "block_efficiency": {
            "specdec": round(cell.block_efficiency, 3),
            "transformers": round(other.block_efficiency, 3),
        },
        "theory": theory,
        "floor_tokens_per_second": round(cell.work.batch_size / floor * theory["improvement"], 2),
        "gap_ms_per_token": gap(cell.total, sum(seconds), floor),
        "target_ms_by_draft_length": {
            k: round(1e3 * time.verify_seconds / time.steps, 4)
            for k, time in enumerate(cell.total.times)
            if time.steps
        },
    }


def predicted(metrics: Metrics, baseline: Metrics) -> dict[str, float]:
    """Return the improvement of Theorem 3.8 with the measured alpha and c.

    Gamma is the mean number of tokens that were drafted: prompt lookup often finds none.

    References:
        Theorem 3.8, section 3.3 of arXiv 2211.17192.
    """
    alpha, gamma = metrics.alpha or 0.0, metrics.drafted / metrics.row_steps
    c = (metrics.draft_seconds_per_call or 0.0) / (baseline.verify_seconds_per_call or float("nan"))
    return {
        "alpha": round(alpha, 4),
        "c": round(c, 5),
        "gamma": round(gamma, 3),
        "improvement": round(walltime_improvement(alpha, gamma, c), 4),
    }


def gap(metrics: Metrics, seconds: float, floor: float) -> dict[str, float]:
    """Return where the time goes, in milliseconds for each new token; the parts add up to `measured`.

    Args:
        metrics: Counts and times of all calls.
        seconds: Of all calls.
        floor: Seconds to read the target's weights once.

    Returns:
        floor: Reading the target's weights once in each step.
        target: What its forward passes take above that, with acceptance: T(k) less the floor, in each step.
        draft: The drafter.
        rest: The rest of the steps.
        first_step: The first step of each batch, which reads the prompt, and setting up.
        measured: Their sum.
    """
    times = metrics.times
    steps = sum(time.steps for time in times)
    verify = sum(time.verify_seconds for time in times)
    draft = sum(time.draft_seconds for time in times)
    whole = sum(time.seconds for time in times)
    parts = {
        "floor": floor * steps,
        "target": verify - floor * steps,
        "draft": draft,
        "rest": whole - verify - draft,
        "first_step": seconds - whole,
        "measured": seconds,
    }
    return {name: round(1e3 * value / metrics.tokens, 4) for name, value in parts.items()}
