"""Settings of the random drafter. Importing this imports no torch."""

from __future__ import annotations

from specdec_core.interface import PluginConfig


class RandomConfig(PluginConfig):
    """The random drafter has no settings."""
