"""D(k): how long a drafter takes for a draft of k tokens on this machine, along recorded texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Protocol

import numpy as np

from specdec_core.costs.step_costs import mean_seconds
from specdec_core.interface import Proposal
from specdec_core.models.device import synchronize
from specdec_core.offline.replay.text_acceptance import TextAcceptance
from specdec_core.offline.replay.text_oracle import ForcedText, TextOracle

_SEED = 0


class OpenText(Protocol):
    """Opens a drafter along a text."""

    def __call__(
        self, texts: Sequence[ForcedText], follow: Callable[[Proposal], list[int]], *, live: bool = False
    ) -> TextOracle:
        """Return it; see `TextOracle`."""


def draft_seconds(
    texts: Iterable[tuple[ForcedText, TextAcceptance]], opened: OpenText, max_gamma: int, timings: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean seconds of `propose` and `commit` by the length k = 0, 1, ... K of the draft.

    Drafts of 1 to K tokens are asked for in turn, in a new random order each time. Each follows the text for as
    many tokens as would be accepted, a number drawn at random, and is free from there on, so that
    caches are rolled back as they are in decoding. The first step, which reads the prompt, is left out. Lengths
    that did not occur are interpolated; a drafter that was asked and drafted nothing counts as k = 0, and D(0) is
    0 where that never happened. `specdec_core.costs.step_costs` says why it is the mean.

    Args:
        texts: Texts with the acceptance along each; as many as are needed are read.
        opened: Opens the drafter along a text.
        max_gamma: K.
        timings: Number of timings of each length.

    Returns:
        The means, and how well each is known: half its 95% interval over its value.
    """
    generator = np.random.default_rng(_SEED)
    found: dict[int, list[float]] = {}
    turn: list[int] = []
    steps, most = 0, (timings + 1) * max_gamma
    for text, acceptance in texts:
        ahead: list[int] = []

        def follow(proposal: Proposal) -> list[int]:
            draft = proposal.tokens[0, : proposal.lengths[0]].tolist()
            same = [drafted == token for drafted, token in zip(draft, ahead[:-1], strict=False)]  # noqa: B023
            return [(*same, False).index(False)]

        oracle = opened([text], follow, live=True)
        try:
            while not oracle.batch.done and steps < most:
                turn = turn or (generator.permutation(max_gamma) + 1).tolist()
                at, budget = oracle.position[0], turn.pop()
                ahead[:] = text.text.tokens[at:].tolist()
                oracle.sampler.reach = [_accepted(text, acceptance, at, budget, generator)]
                begun = perf_counter()
                report = oracle.step([min(budget, text.room(at))])
                seconds = report.draft_seconds
                if oracle.device.type != "cpu":  # where launches return before the device is done
                    synchronize(oracle.device)
                    seconds = perf_counter() - begun
                if at:
                    steps += 1
                    if steps > max_gamma:  # the first turn warms up
                        found.setdefault(report.outcome.drafted[0], []).append(seconds)
        finally:
            oracle.batch.close()
        if steps >= most:
            break
    return mean_seconds({0: [0.0], **found}, max_gamma)


def _accepted(
    text: ForcedText, acceptance: TextAcceptance, at: int, budget: int, generator: np.random.Generator
) -> int:
    """Return how many tokens of a draft are accepted, drawn at random."""
    own = acceptance.asked(budget)
    ahead = min(budget, text.room(at), int(own.offered[at]), len(text) - at)
    rejected = generator.random(ahead) >= own.ratio[at, :ahead]
    return int(rejected.argmax()) if rejected.any() else ahead
