"""The tree controller: the same tree in every step, of a given shape or by the drafter's probabilities."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from specdec_core.interface import BatchInfo, BestFirstTree, GammaController, GammaSession, PluginConfig, TokenTree
from specdec_core.interface.controllers import FixedGammaSession
from specdec_core.interface.tree import TreeShape
from specdec_plugins.gamma.settings import Count

MAX_NODES = 1024
"""The largest tree: the attention mask of a step grows with the square of its nodes."""


class TreeGammaConfig(PluginConfig):
    """The same token tree in every step, of given widths or by the drafter's probabilities.

    The shape of the tree: `widths`, or `nodes` and `depth`.
    """

    widths: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None
    """Number of children of each node: of the committed text, of each of those, and so on. `[3, 2, 1]` has 3 + 6 +
    6 nodes."""
    nodes: Annotated[Count, Field(le=MAX_NODES)] | None = None
    """Number of nodes of a tree that follows the drafter's own probabilities, spread evenly over its levels."""
    depth: Annotated[Count, Field(le=MAX_NODES)] | None = None
    """Number of its levels."""

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        given = [name for name in ("widths", "nodes", "depth") if getattr(self, name) is not None]
        if given not in (["widths"], ["nodes", "depth"]):
            names = " and ".join(map(repr, given)) or "none of them"
            raise ValueError(f"give 'widths', or 'nodes' and 'depth'; got {names}")
        if self.widths is not None:
            nodes = level = 0
            for depth, width in enumerate(self.widths):
                level = width * (level if depth else 1)
                nodes += level
                if nodes > MAX_NODES:
                    raise ValueError(f"widths make more than {MAX_NODES} nodes; use smaller ones")
        elif self.nodes is not None and self.depth is not None and self.nodes < self.depth:
            raise ValueError(f"{self.nodes} nodes do not fill {self.depth} levels; raise nodes or lower depth")
        return self

    @property
    def shape(self) -> TreeShape:
        """The tree."""
        if self.widths is not None:
            return TokenTree.from_widths(self.widths)
        assert self.nodes is not None  # validated
        assert self.depth is not None
        each, more = divmod(self.nodes, self.depth)
        return BestFirstTree(tuple(each + (level < more) for level in range(self.depth)))


class TreeGamma(GammaController):
    """Asks for the same tree in every step.

    References:
        SpecInfer (arXiv 2305.09781) for widths by depth; EAGLE-2 (arXiv 2406.16858) for trees that follow the
        drafter's probabilities.
    """

    def __init__(self, config: TreeGammaConfig) -> None:
        super().__init__(config)
        self._shape = config.shape

    @property
    def max_gamma(self) -> int:
        """The number of nodes."""
        return len(self._shape)

    def open(self, batch: BatchInfo) -> GammaSession:
        """Start a batch."""
        return FixedGammaSession(self.max_gamma, batch.batch_size, self._shape)
