"""Acceptance by rank and depth: decode with a tree, and count which of the siblings is accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specdec_core.decoding import Decoder, Prompt
from specdec_core.interface import BatchInfo, GammaController, GammaSession, PluginConfig, StepReport, TokenTree
from specdec_core.interface.controllers import FixedGammaSession
from specdec_core.interface.settings import GenerationSettings
from specdec_core.measurement.measurement_file import MeasureSettings
from specdec_core.sampling.generators import row_seed


class Siblings(GammaController):
    """Asks for a line whose nodes have further children: those of rank 0 go on, their siblings end there.

    Args:
        depth: Length of the line.
        ranks: Children of each of its nodes.
    """

    def __init__(self, depth: int, ranks: int) -> None:
        super().__init__(PluginConfig())
        firsts = [-1, *(level * ranks for level in range(depth - 1))]
        self.tree = TokenTree(tuple(first for first in firsts for _ in range(ranks)))

    @property
    def max_gamma(self) -> int:
        """The number of nodes."""
        return len(self.tree)

    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch."""
        return FixedGammaSession(self.max_gamma, batch.batch_size, self.tree)


class RankCounts:
    """Counts, at each depth, how often the children were verified, and which of them was accepted.

    Args:
        tree: The tree that was asked for.
    """

    def __init__(self, tree: TokenTree) -> None:
        self._tree = tree
        self._reached = np.zeros(tree.depth)
        self._accepted = np.zeros((tree.depth, max(tree.ranks) + 1))

    def add(self, report: StepReport) -> None:
        """Count a step."""
        outcome = report.outcome
        if outcome.paths is None:
            return
        rows = zip(report.verified, outcome.paths, strict=True)
        for verified, path in rows:
            self._reached[:verified] += 1
            for node in path:
                self._accepted[self._tree.depths[node], self._tree.ranks[node]] += 1

    @property
    def rates(self) -> tuple[tuple[float, ...], ...]:
        """The share of the verified steps in which each rank was accepted, down to the last depth that was."""
        known = int(np.argmin(np.append(self._reached > 0, False)))
        shares = self._accepted[:known] / self._reached[:known, None]
        return tuple(tuple(map(float, row)) for row in shares)


def measure_ranks(
    decoder: Decoder,
    tree: TokenTree,
    prompts: Sequence[Prompt],
    settings: MeasureSettings,
    rows: int,
    advance: Callable[[int], None],
) -> tuple[tuple[float, ...], ...]:
    """Return the probability that the child of each rank is the accepted one, for each depth.

    Args:
        decoder: A strict decoder with `Siblings` as its gamma.
        tree: The tree that it asks for.
        prompts: Prompts to continue.
        settings: Number of tokens, length of the texts, and seed.
        rows: Number of prompts to decode together.
        advance: Called with the number of tokens so far.

    Returns:
        A row for each depth. Empty if no tree was drafted: the drafter or the target takes lines only.

    Raises:
        PluginError: The drafter failed.
    """
    counts = RankCounts(tree)
    generation = GenerationSettings(max_new_tokens=settings.max_new_tokens, ignore_eos=settings.ignore_eos)
    tokens = turn = 0
    while tokens < settings.tokens:
        before = tokens
        if decoder.drafter is not None:
            decoder.drafter.reset()  # a turn has the prompts of the one before
        for start in range(0, len(prompts), rows):
            batch = range(start, min(start + rows, len(prompts)))
            seeds = [row_seed(settings.seed, turn * len(prompts) + index) for index in batch]
            for report in decoder.stream([prompts[index] for index in batch], generation, seeds=seeds):
                counts.add(report)
                tokens += sum(map(len, report.outcome.committed))
                advance(min(tokens, settings.tokens))
            if tokens >= settings.tokens:
                break
        turn += 1
        if tokens == before:
            break
    return counts.rates
