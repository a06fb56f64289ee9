"""The registration of the drafters and their trainers with specdec. Importing this imports no torch."""

from __future__ import annotations

from specdec_core.interface import PluginSpec
from specdec_core.registry import hookimpl
from specdec_drafters.chain.config import ChainConfig
from specdec_drafters.datastore.config import DatastoreConfig
from specdec_drafters.dflash.config import DFlashConfig
from specdec_drafters.eagle3.config import Eagle3Config, Eagle3TrainerConfig
from specdec_drafters.early_exit.config import EarlyExitConfig, EarlyExitTrainerConfig
from specdec_drafters.heads.config import HeadsConfig, HeadsTrainerConfig
from specdec_drafters.hierarchical.config import HierarchicalConfig
from specdec_drafters.mtp.config import MtpConfig
from specdec_drafters.ngram.config import NgramConfig, NgramTrainerConfig
from specdec_drafters.parallel.config import ParallelConfig, ParallelTrainerConfig
from specdec_drafters.prompt_copy.config import PromptCopyConfig
from specdec_drafters.quantized.config import QuantizedConfig
from specdec_drafters.random.config import RandomConfig
from specdec_drafters.suffix.config import SuffixConfig
from specdec_drafters.transformer.config import TransformerConfig, TransformerTrainerConfig
from specdec_drafters.translated.config import TranslatedConfig


@hookimpl
def specdec_drafters() -> list[PluginSpec]:
    """Register the drafters."""
    return [
        PluginSpec("drafter", "random", "specdec_drafters.random.drafter:RandomDrafter", RandomConfig),
        PluginSpec(
            "drafter",
            "prompt-copy",
            "specdec_drafters.prompt_copy.drafter:PromptCopyDrafter",
            PromptCopyConfig,
            aliases=("prompt-lookup",),
        ),
        PluginSpec("drafter", "suffix", "specdec_drafters.suffix.drafter:SuffixDrafter", SuffixConfig),
        PluginSpec("drafter", "datastore", "specdec_drafters.datastore.drafter:DatastoreDrafter", DatastoreConfig),
        PluginSpec("drafter", "ngram", "specdec_drafters.ngram.drafter:NgramDrafter", NgramConfig),
        PluginSpec(
            "drafter", "transformer", "specdec_drafters.transformer.drafter:TransformerDrafter", TransformerConfig
        ),
        PluginSpec(
            "drafter", "early-exit", "specdec_drafters.early_exit.drafter:EarlyExitDrafter", EarlyExitConfig
        ),
        PluginSpec("drafter", "quantized", "specdec_drafters.quantized.drafter:QuantizedDrafter", QuantizedConfig),
        PluginSpec("drafter", "heads", "specdec_drafters.heads.drafter:HeadsDrafter", HeadsConfig),
        PluginSpec("drafter", "parallel", "specdec_drafters.parallel.drafter:ParallelDrafter", ParallelConfig),
        PluginSpec("drafter", "eagle3", "specdec_drafters.eagle3.drafter:Eagle3Drafter", Eagle3Config),
        PluginSpec("drafter", "dflash", "specdec_drafters.dflash.drafter:DFlashDrafter", DFlashConfig),
        PluginSpec("drafter", "mtp", "specdec_drafters.mtp.drafter:MtpDrafter", MtpConfig),
        PluginSpec(
            "drafter",
            "hierarchical",
            "specdec_drafters.hierarchical.drafter:HierarchicalDrafter",
            HierarchicalConfig,
        ),
        PluginSpec("drafter", "chain", "specdec_drafters.chain.drafter:ChainDrafter", ChainConfig),
        PluginSpec(
            "drafter", "translated", "specdec_drafters.translated.drafter:TranslatedDrafter", TranslatedConfig
        ),
    ]


@hookimpl
def specdec_trainers() -> list[PluginSpec]:
    """Register the trainers, each under the name of its drafter."""
    return [
        PluginSpec("trainer", "ngram", "specdec_drafters.ngram.trainer:NgramTrainer", NgramTrainerConfig),
        PluginSpec(
            "trainer",
            "transformer",
            "specdec_drafters.transformer.trainer:TransformerTrainer",
            TransformerTrainerConfig,
        ),
        PluginSpec(
            "trainer", "early-exit", "specdec_drafters.early_exit.trainer:EarlyExitTrainer", EarlyExitTrainerConfig
        ),
        PluginSpec("trainer", "heads", "specdec_drafters.heads.trainer:HeadsTrainer", HeadsTrainerConfig),
        PluginSpec(
            "trainer", "parallel", "specdec_drafters.parallel.trainer:ParallelTrainer", ParallelTrainerConfig
        ),
        PluginSpec("trainer", "eagle3", "specdec_drafters.eagle3.trainer:Eagle3Trainer", Eagle3TrainerConfig),
    ]
