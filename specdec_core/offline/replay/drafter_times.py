"""D(k): how long a drafter takes for a draft of k tokens on this machine, along recorded texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Protocol

import numpy as np

from specdec_core.costs.timed_steps import mean_seconds
from specdec_core.models.device import synchronize
from specdec_core.offline.replay.text_acceptance import TextAcceptance
from specdec_core.offline.replay.text_session import ForcedText, TextSession

_SEED = 0


class OpenSession(Protocol):
    """Opens a session along some texts."""

    def __call__(self, texts: Sequence[ForcedText], *, live: bool = False) -> TextSession:
        """Return it; `live` as in `TextSession`."""


def draft_seconds(
    batches: Iterable[Sequence[tuple[ForcedText, TextAcceptance]]],
    opened: OpenSession,
    max_gamma: int,
    timings: int,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean seconds of `propose` and `commit` by the length k = 0, 1, ... K of the draft.

    Drafts of 1 to K tokens are asked for in turn, in a new random order each time. Each follows the text for as
    many tokens as would be accepted, a number drawn at random, and is free from there on, so that
    caches are rolled back as they are in decoding. The first step, which reads the prompt, is left out. Lengths
    that did not occur are interpolated; a drafter that was asked and drafted nothing counts as k = 0, and D(0) is
    0 where that never happened. `specdec_core.costs.timed_steps` says why it is the mean.

    Args:
        batches: Texts that are drafted together, with the acceptance along each; as many as are needed are read.
        opened: Opens a session along some texts.
        max_gamma: K.
        timings: Number of timings of each length.

    Returns:
        The means, and how well each is known: half its 95% interval over its value.
    """
    generator = np.random.default_rng(_SEED)
    found: dict[int, list[float]] = {}
    turn: list[int] = []
    steps = 0
    for batch in batches:
        session = opened([text for text, _ in batch], live=True)
        try:
            # Once a text has ended, steps no longer have this batch size.
            while (
                all(at < len(text) for at, (text, _) in zip(session.position, batch, strict=True))
                and steps < (timings + 1) * max_gamma
            ):
                if not turn:
                    turn = (generator.permutation(max_gamma) + 1).tolist()
                first = not session.position[0]
                length, seconds = _step(session, batch, turn.pop(), generator)
                if not first:
                    steps += 1
                    if steps > max_gamma:  # the first turn warms up
                        found.setdefault(length, []).append(seconds)
        finally:
            session.close()
        if steps >= (timings + 1) * max_gamma:
            break
    return mean_seconds({0: [0.0], **found}, max_gamma)


def _step(
    session: TextSession,
    batch: Sequence[tuple[ForcedText, TextAcceptance]],
    budget: int,
    generator: np.random.Generator,
) -> tuple[int, float]:
    """Take a step with drafts of up to `budget` tokens; return the longest length and the drafter's seconds."""
    each = list(zip(batch, session.position, strict=True))
    session.sampler.reach = [_accepted(*one, at, budget, generator) for one, at in each]
    wait = session.device.type != "cpu"
    session.proposer.seconds = 0.0
    begun = perf_counter()
    proposal = session.ask([min(budget, text.room(at)) for (text, _), at in each])
    seconds = perf_counter() - begun
    if wait:
        synchronize(session.device)
        seconds = perf_counter() - begun
    drafts = zip(proposal.tokens.tolist(), proposal.lengths, each, strict=True)
    accepted = [_common(row[:length], text.text.tokens[at:].tolist()) for row, length, ((text, _), at) in drafts]
    counts = [min(n + 1, len(text) - at) for n, ((text, _), at) in zip(accepted, each, strict=True)]
    begun = perf_counter()
    session.commit(accepted, counts, proposal.lengths)
    if wait:
        synchronize(session.device)
        return proposal.longest, seconds + perf_counter() - begun
    return proposal.longest, session.proposer.seconds  # the drafter alone, without the checks of its proposal


def _accepted(
    text: ForcedText, acceptance: TextAcceptance, at: int, budget: int, generator: np.random.Generator
) -> int:
    """Return how many tokens of a draft are accepted, drawn at random."""
    own = acceptance.asked(budget)
    ahead = min(budget, text.room(at), int(own.offered[at]), len(text) - at)
    rejected = generator.random(ahead) >= own.ratio[at, :ahead]
    return int(rejected.argmax()) if rejected.any() else ahead


def _common(draft: Sequence[int], text: Sequence[int]) -> int:
    """Return the length of the common prefix of a draft and a text."""
    same = 0
    for drafted, token in zip(draft, text, strict=False):
        if drafted != token:
            break
        same += 1
    return same
