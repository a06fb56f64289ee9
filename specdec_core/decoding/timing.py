"""Times of a decoder's steps by the length of their draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.prompt_ids import Prompt
from specdec_core.interface import DeterministicDrafter, PluginConfig, StepReport, TargetInfo
from specdec_core.interface.controllers import ScriptedGamma
from specdec_core.interface.errors import PromptError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel
from specdec_core.sampling.generators import row_seed


class RepeatLastToken(DeterministicDrafter):
    """Proposes the last token repeatedly: drafts of any length at no cost, to time the target."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(PluginConfig(), target)

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        """Return the last token, `budget` times."""
        return [tokens[-1]] * budget


def watch_steps(
    target: LoadedModel,
    prompts: Sequence[Prompt],
    *,
    gamma: int,
    timings: int,
    sampling: SamplingSettings,
    max_new_tokens: int = 128,
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> list[StepReport]:
    """Decode with made-up drafts of all lengths in turn, and return the reports of the steps.

    `specdec_core.costs.step_costs.measured_costs` makes T(k) and the overhead of them.

    Args:
        target: The target.
        prompts: Prompts to decode, in turn.
        gamma: The longest draft.
        timings: Number of timings of each draft length.
        sampling: Its sampling settings.
        max_new_tokens: Length of the texts, longer where each draft length needs it.
        seed: Seed of the texts, and of the order of draft lengths.
        advance: Called with the number of steps so far.

    Raises:
        PromptError: If the prompts leave no room for a second step.
    """
    left: list[int] = []
    generator = np.random.default_rng(seed)

    def plan() -> list[int]:
        # Each length in turn, in a new random order each time: drift of the machine then affects all alike, and no
        # length always follows the same other one, on whose accepted tokens the drafter's time depends.
        left[:] = left or generator.permutation(gamma + 1).tolist()
        return [left.pop()]

    drafter = RepeatLastToken(target.info())
    decoder = Decoder(target, drafter, gamma=ScriptedGamma(gamma, plan), sampling=sampling, strict=True)
    turn = gamma + 1
    required = (timings + 1) * turn
    generation = GenerationSettings(max_new_tokens=max(max_new_tokens, 2 * turn), ignore_eos=True)
    reports: list[StepReport] = []
    number = 0

    def enough() -> bool:
        # The first step of a text is not counted, but uses up a length of the turn: with few turns there might be
        # no step without a draft, which all others are compared with.
        return len(reports) >= required and any(max(one.outcome.drafted) == 0 for one in reports[turn:])

    while not enough():
        if number >= len(prompts) and not reports:
            raise PromptError(
                "no prompt leaves room for a second step in the target's context. Shorten the prompts."
            )
        steps = decoder.stream([prompts[number % len(prompts)]], generation, seeds=[row_seed(seed, number)])
        number += 1
        for report in steps:
            if report.step:  # the first step reads the prompt
                reports.append(report)
            advance(len(reports))
            if enough():
                break
        steps.close()
    return reports[turn:]  # the first turn warms up
