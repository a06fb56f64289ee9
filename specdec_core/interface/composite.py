"""Drafters that are composed of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_core.interface.drafter import Drafter, TargetInfo


class CompositeDrafter(Drafter):
    """A drafter that passes its requests on to others.

    It declares what they declare: it needs the hidden states that one of them needs, has the `max_length` of the
    one that drafts longest, and remembers if one of them does. Set an attribute after `super().__init__` where it
    differs. Whether it drafts trees, and is autoregressive, depends on how requests are passed on; it says so
    itself.

    Args:
        config: Its validated settings.
        target: The target it drafts for.
        drafters: The others, at least one.

    Attributes:
        drafters: The others.
    """

    def __init__(self, config: Any, target: TargetInfo, drafters: Sequence[Drafter]) -> None:
        super().__init__(config, target)
        self.drafters = tuple(drafters)
        self.hidden_layers = sorted({layer for one in drafters for layer in one.hidden_layers})
        self.drafts_by_budget = any(one.drafts_by_budget for one in drafters)
        self.remembers = any(one.remembers for one in drafters)
        limits = [one.max_length for one in drafters]
        self.max_length = None if None in limits else max(limit for limit in limits if limit is not None)

    def reset(self) -> None:
        """Have each of the others forget what requests taught."""
        for drafter in self.drafters:
            drafter.reset()
