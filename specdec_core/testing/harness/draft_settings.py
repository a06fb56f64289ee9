"""Requests of checks to a drafter: sampling settings, and lines or trees."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_core.interface import TokenTree
from specdec_core.interface.settings import SamplingSettings
from specdec_core.interface.tree import TreeShape


@dataclass(frozen=True)
class Setting:
    """The kind of draft.

    Attributes:
        sampling: The sampling settings.
        tree: The shape of a draft; None for lines.
    """

    sampling: SamplingSettings
    tree: TreeShape | None = None


TREE = TokenTree((-1, -1, 1, 1))
IN_LINES, IN_TREES = "temperature 0.7, top-k 3", "temperature 0.7, top-k 3, in trees"
SETTINGS = {
    "temperature 1": Setting(SamplingSettings()),
    IN_LINES: Setting(SamplingSettings(temperature=0.7, top_k=3)),
    IN_TREES: Setting(SamplingSettings(temperature=0.7, top_k=3), TREE),
    "greedy": Setting(SamplingSettings(temperature=0)),
}
"""The settings that most checks try: of top-k, in trees or in lines, as the drafter can."""
