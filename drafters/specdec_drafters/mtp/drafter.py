"""The mtp drafter: a decoder layer that reads the target's last hidden states and drafts token by token."""

from __future__ import annotations

from specdec_core.interface import TargetInfo
from specdec_drafters.eagle3.drafter import Eagle3Drafter
from specdec_drafters.mtp.checkpoint import read_mtp
from specdec_drafters.mtp.model import MtpHead


class MtpDrafter(Eagle3Drafter):
    """Drafts with an MTP layer, in the format of the speculators package.

    The layer has entries, and a cache of them, as an EAGLE-3 head does. Each reads one state: that of the target's
    last layer before its final norm, and for drafted tokens its own output of the token before.

    q is the layer's distribution over the target's vocabulary, after the run's draft sampling settings.

    References:
        DeepSeek-AI 2024, section 2.2 (arXiv 2412.19437); Cui et al. 2025 (arXiv 2509.18362).
    """

    def read(self, model: str, target: TargetInfo) -> tuple[MtpHead, tuple[int, ...]]:
        """Read a checkpoint; return the layer, and the layer of the target that it reads."""
        return read_mtp(model, target)
