"""What may be said about each drafter and each trainer. Importing this imports no torch."""

from specdec_drafters.configs.basic import (
    BUILTIN_TEXTS,
    NgramConfig,
    PromptCopyConfig,
    RandomConfig,
    TransformerConfig,
)
from specdec_drafters.configs.composed import ChainConfig, HierarchicalConfig
from specdec_drafters.configs.heads import HeadsConfig, HeadsTrainerConfig
from specdec_drafters.configs.ngram_training import NgramTrainerConfig
from specdec_drafters.configs.training import TrainingConfig, TransformerTrainerConfig

__all__ = [
    "BUILTIN_TEXTS",
    "ChainConfig",
    "HeadsConfig",
    "HeadsTrainerConfig",
    "HierarchicalConfig",
    "NgramConfig",
    "NgramTrainerConfig",
    "PromptCopyConfig",
    "RandomConfig",
    "TrainingConfig",
    "TransformerConfig",
    "TransformerTrainerConfig",
]
