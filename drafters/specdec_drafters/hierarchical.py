"""The hierarchical drafter: a draft model that is itself accelerated by another drafter."""

from dataclasses import replace

from specdec_core.interface import (
    CompositeDrafter,
    ConfigError,
    DraftSession,
    GammaController,
    PluginError,
    SessionInfo,
    TargetInfo,
)
from specdec_core.models import LoadedModel
from specdec_drafters.common.draft_model_loading import load_draft_model, make_nested
from specdec_drafters.common.model_drafter import ModelDrafter, max_length_of
from specdec_drafters.settings import HierarchicalConfig


class HierarchicalDrafter(CompositeDrafter):
    """Drafts with a model, as `transformer` does, and accelerates that model with another drafter.

    The level below makes the middle model faster without changing its distribution: each draft token is a sample
    from the middle model's own adjusted distribution, so q is exact, to any depth. Tokens that the target rejects
    are rolled back on every level.

    The model in the middle is named in the settings, or it is that of a drafter made of the target.
    In Python, the settings may contain a drafter and a controller instead of their settings.

    References:
        Section 6 of arXiv 2211.17192 (a hierarchical version of the algorithm), with Algorithm 1 on each level.
    """

    autoregressive = True

    def __init__(self, config: HierarchicalConfig, target: TargetInfo) -> None:
        self.loaded = _middle_model(config, target)
        # Every level drafts in the target's vocabulary, even if the middle model pads its own.
        own = self.loaded.info(target.folder)
        below = replace(own, vocab_size=target.vocab_size, build=target.build)
        super().__init__(config, target, [make_nested("drafter", config.drafter, below, "hierarchical")])
        self.gamma: GammaController = make_nested("gamma", config.gamma, below, "hierarchical")
        # The hidden states that the drafter below reads are the middle model's, and the draft is that model's own.
        self.hidden_layers, self.drafts_by_budget = (), False
        self.max_length = max_length_of(self.loaded)

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch with empty caches on this level and below."""
        if session.loop is None:
            raise PluginError(
                "drafter 'hierarchical' needs an inner loop, which a Decoder opens for it (SessionInfo.loop)."
            )
        return session.loop(self.loaded, self.drafters[0], self.gamma)


def _middle_model(config: HierarchicalConfig, target: TargetInfo) -> LoadedModel:
    """Return the model in the middle.

    Raises:
        ConfigError: `middle` is a drafter without its own model.
        ModelError: The model cannot be loaded, or cannot draft for the target.
    """
    if config.middle is None:
        return load_draft_model(config, target, "hierarchical")
    drafter = make_nested("drafter", config.middle, target, "hierarchical")
    if not isinstance(drafter, ModelDrafter):
        name = getattr(config.middle, "name", type(drafter).__name__)
        raise ConfigError(
            f"drafter 'hierarchical': {name!r} in 'middle' drafts without its own model, which the drafter "
            "below could accelerate. Name 'transformer', 'early-exit' or 'quantized' there, or a model in 'model'."
        )
    return drafter.loaded
