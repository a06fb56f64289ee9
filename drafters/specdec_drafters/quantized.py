"""The quantized drafter: a copy of the target with weights of 8 or 4 bits (self-speculation)."""

from specdec_core.interface import TargetInfo
from specdec_core.models import quantize
from specdec_drafters.common.draft_model_loading import target_model
from specdec_drafters.common.model_drafter import ModelDrafter
from specdec_drafters.settings import QuantizedConfig


class QuantizedDrafter(ModelDrafter):
    """Drafts with a quantized copy of the target.

    q is what the copy computes, not the target's p: rounding the weights costs a little acceptance, and no
    exactness.

    References:
        ML-SpecQD (Georganas et al. 2025, arXiv 2503.13565); QuantSpec (Tiwari et al. 2025, arXiv 2502.10424),
        which also quantizes the cache.
    """

    def __init__(self, config: QuantizedConfig, target: TargetInfo) -> None:
        super().__init__(
            config, target, quantize(target_model(target, "quantized"), config.bits, "drafter: quantized")
        )
