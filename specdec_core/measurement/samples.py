"""The text that a measurement is taken over: the target's own, with a draft in the shadow of every token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specdec_core.border import StepReport
from specdec_core.decoding import Decoder, Prompt
from specdec_core.errors import PromptError
from specdec_core.measurement.estimate import Samples
from specdec_core.measurement.settings import MeasureSettings
from specdec_core.measurement.shadow import Shadow
from specdec_core.randomness import row_seed
from specdec_core.settings import GenerationSettings


@dataclass
class Notes:
    """Samples while they are taken, a list entry each.

    Attributes:
        gamma: K, the longest draft.
        eos_ids: Ids that end a sequence: what is behind one in a draft is not counted.
        prompts: The number of the prompt.
        asked: How many tokens were asked for.
        drafted: How many were drafted.
        beta: `[K, L]`, for each of L leniences the probability that a draw of q is accepted (section 3.1).
        own: `[K, L]`, that of the token that was drawn.
    """

    gamma: int
    eos_ids: frozenset[int]
    prompts: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    beta: list[NDArray[np.float64]] = field(default_factory=list)
    own: list[NDArray[np.float64]] = field(default_factory=list)

    def add(self, report: StepReport, shadow: Shadow, prompts: Sequence[int]) -> None:
        """Note a step: a sample for each row that was asked for a draft."""
        noted = shadow.noted()
        nothing = np.zeros((self.gamma, len(shadow.leniences)))
        for row, prompt in enumerate(prompts):
            if not report.asked[row]:
                continue  # it has ended, or has room for the target's token only
            asked, drafted = self._up_to_the_end(report, row)
            beta, own = nothing.copy(), nothing.copy()
            if noted is not None:
                beta[:drafted], own[:drafted] = (part[row, :drafted] for part in noted)
            self.prompts.append(prompt)
            self.asked.append(asked)
            self.drafted.append(drafted)
            self.beta.append(beta)
            self.own.append(own)

    def _up_to_the_end(self, report: StepReport, row: int) -> tuple[int, int]:
        """Return how many tokens were asked for and drafted: what is behind an end of sequence is never judged."""
        for place, token in enumerate(report.draft_tokens[row], start=1):
            if token in self.eos_ids:
                return place, place
        return report.asked[row], report.drafted[row]

    def samples(self) -> Samples:
        """Return all that was noted."""
        return Samples(
            prompt=np.array(self.prompts, dtype=np.int64),
            asked=np.array(self.asked, dtype=np.int64),
            drafted=np.array(self.drafted, dtype=np.int64),
            beta=np.stack(self.beta),
            own=np.stack(self.own),
        )


def take_samples(
    decoder: Decoder,
    shadow: Shadow,
    prompts: Sequence[Prompt],
    settings: MeasureSettings,
    *,
    argmax: bool,
    rows: int,
    advance: Callable[[int], None],
) -> Samples:
    """Let the target write, and judge a draft at each of its tokens.

    The tokens are spread evenly over the prompts. Where texts are sampled, each is at most `max_new_tokens` long,
    and prompts have further texts until there are enough tokens. The argmax text of a prompt is always the same,
    so each has one, as long as is needed and the context allows; there may be fewer tokens then.

    Args:
        decoder: Of target and drafter, with `shadow` as its rule and a gamma that is always `settings.gamma`.
        shadow: The rule.
        prompts: What the target goes on from.
        settings: How many tokens, how long the texts, and from which seed.
        argmax: Whether the temperature is 0.
        rows: How many prompts are decoded together.
        advance: Called with the number of samples so far.

    Raises:
        PromptError: The prompts leave no room for a draft.
        PluginError: The drafter failed, where the decoder is strict.
    """
    eos = () if settings.ignore_eos else decoder.target.eos_ids
    notes = Notes(settings.gamma, frozenset(eos))
    for turn in range(settings.tokens):
        before = len(notes.prompts)
        for batch in _batches(len(prompts), rows):
            wanted = settings.tokens - len(notes.prompts)
            if wanted <= 0:
                break
            # One token more than is noted: before the last one there is no room for a draft.
            length = math.ceil(wanted / (len(prompts) - batch[0])) + 1
            generation = GenerationSettings(
                max_new_tokens=length if argmax else min(length, max(settings.max_new_tokens, 2)),
                ignore_eos=settings.ignore_eos,
            )
            seeds = [row_seed(settings.seed, turn * len(prompts) + index) for index in batch]
            for report in decoder.stream([prompts[index] for index in batch], generation, seeds=seeds):
                notes.add(report, shadow, batch)
                advance(len(notes.prompts))
        if len(notes.prompts) == before:
            raise PromptError(
                "no prompt leaves room for a draft: each fills the target's context but for a token. Shorten them."
            )
        if argmax or len(notes.prompts) >= settings.tokens:
            break
    return notes.samples()


def _batches(count: int, rows: int) -> Iterator[range]:
    for start in range(0, count, rows):
        yield range(start, min(start + rows, count))
