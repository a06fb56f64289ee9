"""Samples of acceptance: the target generates text, and every token has a draft that is never accepted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specdec_core.decoding import Decoder, Prompt
from specdec_core.interface import StepReport
from specdec_core.interface.errors import PromptError
from specdec_core.interface.settings import GenerationSettings
from specdec_core.measurement.estimate import Samples
from specdec_core.measurement.measurement_file import MeasureSettings
from specdec_core.measurement.reject_all import RejectAllRule
from specdec_core.sampling.generators import row_seed


@dataclass
class SampleRecorder:
    """Collects samples; each list has one entry per sample.

    Attributes:
        gamma: K, the longest draft.
        eos_ids: Ids that end a sequence; draft tokens after one are not counted.
        prompts: The number of the prompt.
        asked: How many tokens were requested.
        drafted: How many were drafted.
        beta: `[K, L]`, for each of L leniences the probability that a token drawn from q is accepted (section
            3.1).
        own: `[K, L]`, that of the drafted token.
    """

    gamma: int
    eos_ids: frozenset[int]
    prompts: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    beta: list[NDArray[np.float64]] = field(default_factory=list)
    own: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, report: StepReport, rule: RejectAllRule, prompts: Sequence[int]) -> None:
        """Record a step: a sample for each sequence with a request for a draft."""
        recorded = rule.recorded()
        nothing = np.zeros((self.gamma, len(rule.leniences)))
        for row, prompt in enumerate(prompts):
            if not report.asked[row]:
                continue  # it has ended, or only has room for the target's token
            asked, drafted = self._up_to_eos(report, row)
            beta, own = nothing.copy(), nothing.copy()
            if recorded is not None:
                beta[:drafted], own[:drafted] = (part[row, :drafted] for part in recorded)
            self.prompts.append(prompt)
            self.asked.append(asked)
            self.drafted.append(drafted)
            self.beta.append(beta)
            self.own.append(own)

    def _up_to_eos(self, report: StepReport, row: int) -> tuple[int, int]:
        """Return how many tokens were requested and drafted, without those after an end of sequence."""
        for position, token in enumerate(report.draft_tokens[row], start=1):
            if token in self.eos_ids:
                return position, position
        return report.asked[row], report.outcome.drafted[row]

    def samples(self) -> Samples:
        """Return everything that was recorded."""
        return Samples(
            prompt=np.array(self.prompts, dtype=np.int64),
            asked=np.array(self.asked, dtype=np.int64),
            drafted=np.array(self.drafted, dtype=np.int64),
            beta=np.stack(self.beta),
            own=np.stack(self.own),
        )


def take_samples(
    decoder: Decoder,
    rule: RejectAllRule,
    prompts: Sequence[Prompt],
    settings: MeasureSettings,
    *,
    greedy: bool,
    rows: int,
    advance: Callable[[int], None],
) -> Samples:
    """Generate text with the target, and evaluate a draft at each token.

    Tokens are spread evenly over the prompts. A sampled text has at most `max_new_tokens` tokens, and prompts are
    continued again until there are enough samples. The greedy text of a prompt is always the same, so each prompt
    has one, as long as needed and as the context allows; there may be fewer samples then. A drafter that remembers
    begins each turn through the prompts with nothing known.

    Args:
        decoder: A decoder with this rule and a fixed gamma of `settings.gamma`.
        rule: The rule.
        prompts: Prompts to continue.
        settings: Number of tokens, length of the texts, and seed.
        greedy: Whether the temperature is 0.
        rows: Number of prompts to decode together.
        advance: Called with the number of samples so far.

    Raises:
        PromptError: If the prompts leave no room for a draft.
        PluginError: If the drafter fails and the decoder is strict.
    """
    eos = () if settings.ignore_eos else decoder.target.eos_ids
    recorder = SampleRecorder(settings.gamma, frozenset(eos))
    for turn in range(settings.tokens):
        before = len(recorder.prompts)
        if decoder.drafter is not None:
            decoder.drafter.reset()  # a turn has the prompts of the one before
        for batch in _batches(len(prompts), rows):
            missing = settings.tokens - len(recorder.prompts)
            if missing <= 0:
                break
            # One more token than samples: the last token has no room for a draft.
            length = math.ceil(missing / (len(prompts) - batch[0])) + 1
            generation = GenerationSettings(
                max_new_tokens=length if greedy else min(length, max(settings.max_new_tokens, 2)),
                ignore_eos=settings.ignore_eos,
            )
            seeds = [row_seed(settings.seed, turn * len(prompts) + index) for index in batch]
            for report in decoder.stream([prompts[index] for index in batch], generation, seeds=seeds):
                recorder.add(report, rule, batch)
                advance(len(recorder.prompts))
        if len(recorder.prompts) == before:
            raise PromptError("no prompt leaves room for a draft in the target's context. Shorten the prompts.")
        if greedy or len(recorder.prompts) >= settings.tokens:
            break
    return recorder.samples()


def _batches(count: int, rows: int) -> Iterator[range]:
    for start in range(0, count, rows):
        yield range(start, min(start + rows, count))
