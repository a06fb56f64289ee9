"""Simple plugins that complete a decoder in checks and tests. They use no plugin that ships."""

from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor

from specdec_core.interface import Drafter, DraftSession, PluginConfig, SessionInfo, TargetInfo, TokenTree
from specdec_core.interface.base_drafters import AutoregressiveDrafter, CompositeDrafter
from specdec_core.interface.controllers import BatchInfo, GammaController, GammaSession, ScriptedGamma
from specdec_core.interface.tree import TreeShape
from specdec_core.models import LoadedModel


class Gamma(GammaController):
    """Cycles through gammas, a different one for each row; may stop drafts by confidence.

    Args:
        gammas: The gammas, one in each step for a row.
        stop_below: Stop a row's draft after a token with q below this; 0 does not use confidence.
        tree: The shape of drafts in steps where the first row's gamma is not 0, cut to as many nodes if it is a
            `TokenTree`; None for lines.

    Attributes:
        asked: How often a session was asked whether to draft on.
    """

    def __init__(self, *gammas: int, stop_below: float = 0.0, tree: TreeShape | None = None) -> None:
        super().__init__(PluginConfig())
        self.gammas = gammas
        self.stop_below = stop_below
        self.tree = tree
        self.asked = 0

    @property
    def max_gamma(self) -> int:
        """The largest of the gammas, or the size of the tree."""
        return max(*self.gammas, 0 if self.tree is None else len(self.tree))

    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch."""
        steps = count(1)

        def plan() -> Sequence[int] | TreeShape:
            step, cycle = next(steps), len(self.gammas)
            most = self.gammas[step % cycle]
            if self.tree is not None and most:
                return TokenTree(self.tree.parents[:most]) if isinstance(self.tree, TokenTree) else self.tree
            return [self.gammas[(step + row) % cycle] for row in range(batch.batch_size)]

        def keep_drafting(confidence: Sequence[float]) -> list[bool]:
            self.asked += 1
            return [value >= self.stop_below for value in confidence]

        return ScriptedGamma(self.max_gamma, plan, keep_drafting if self.stop_below else None).open(batch)


class TableDrafter(AutoregressiveDrafter):
    """Fixed random logits after each token, so that q differs much from the p of any target.

    Args:
        vocab_size: The target's V.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__(PluginConfig(), TargetInfo(vocab_size=vocab_size))
        self.table = torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(3)) * 1.5

    def logits(self, prefix: Sequence[int]) -> Tensor:
        """Return the logits `[V]` of the token that follows `prefix`."""
        return self.table[prefix[-1]]


class Hierarchy(CompositeDrafter):
    """Drafts with a model that itself uses a drafter, in the core's own inner loop.

    Args:
        model: The model.
        drafter: The model's drafter.
        gamma: Its draft length.
    """

    def __init__(self, model: LoadedModel, drafter: Drafter, gamma: GammaController) -> None:
        super().__init__(PluginConfig(), drafter.target, [drafter])
        self.hidden_layers = ()  # those of the model serve the drafter
        self.max_length = None if model.max_positions is None else model.max_positions + 1
        self.model, self.drafter, self.gamma = model, drafter, gamma

    def open(self, session: SessionInfo) -> DraftSession:
        """Begin a batch on both levels."""
        assert session.loop is not None
        return session.loop(self.model, self.drafter, self.gamma)
