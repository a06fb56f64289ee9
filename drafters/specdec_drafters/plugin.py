"""The registration of the drafters and their trainers with specdec. Importing this imports no torch."""

from __future__ import annotations

from specdec_core.interface import PluginSpec
from specdec_core.registry import hookimpl
from specdec_drafters import settings


@hookimpl
def specdec_drafters() -> list[PluginSpec]:
    """Register the drafters."""
    return [
        PluginSpec("drafter", "random", "specdec_drafters.random:RandomDrafter", settings.RandomConfig),
        PluginSpec(
            "drafter",
            "prompt-copy",
            "specdec_drafters.prompt_copy:PromptCopyDrafter",
            settings.PromptCopyConfig,
            aliases=("prompt-lookup",),
        ),
        PluginSpec("drafter", "suffix", "specdec_drafters.suffix:SuffixDrafter", settings.SuffixConfig),
        PluginSpec(
            "drafter", "datastore", "specdec_drafters.datastore:DatastoreDrafter", settings.DatastoreConfig
        ),
        PluginSpec("drafter", "ngram", "specdec_drafters.ngram.drafter:NgramDrafter", settings.NgramConfig),
        PluginSpec(
            "drafter", "transformer", "specdec_drafters.transformer:TransformerDrafter", settings.TransformerConfig
        ),
        PluginSpec(
            "drafter",
            "early-exit",
            "specdec_drafters.early_exit.drafter:EarlyExitDrafter",
            settings.EarlyExitConfig,
        ),
        PluginSpec(
            "drafter", "quantized", "specdec_drafters.quantized:QuantizedDrafter", settings.QuantizedConfig
        ),
        PluginSpec("drafter", "heads", "specdec_drafters.heads.drafter:HeadsDrafter", settings.HeadsConfig),
        PluginSpec("drafter", "parallel", "specdec_drafters.parallel:ParallelDrafter", settings.ParallelConfig),
        PluginSpec("drafter", "eagle3", "specdec_drafters.eagle3.drafter:Eagle3Drafter", settings.Eagle3Config),
        PluginSpec("drafter", "dflash", "specdec_drafters.dflash:DFlashDrafter", settings.DFlashConfig),
        PluginSpec("drafter", "mtp", "specdec_drafters.mtp:MtpDrafter", settings.MtpConfig),
        PluginSpec(
            "drafter",
            "hierarchical",
            "specdec_drafters.hierarchical:HierarchicalDrafter",
            settings.HierarchicalConfig,
        ),
        PluginSpec("drafter", "chain", "specdec_drafters.chain:ChainDrafter", settings.ChainConfig),
        PluginSpec(
            "drafter",
            "translated",
            "specdec_drafters.translated.drafter:TranslatedDrafter",
            settings.TranslatedConfig,
        ),
    ]


@hookimpl
def specdec_trainers() -> list[PluginSpec]:
    """Register the trainers, each under the name of its drafter."""
    return [
        PluginSpec("trainer", "ngram", "specdec_drafters.ngram.trainer:NgramTrainer", settings.NgramTrainerConfig),
        PluginSpec(
            "trainer",
            "transformer",
            "specdec_drafters.transformer:TransformerTrainer",
            settings.TransformerTrainerConfig,
        ),
        PluginSpec(
            "trainer",
            "early-exit",
            "specdec_drafters.early_exit.trainer:EarlyExitTrainer",
            settings.EarlyExitTrainerConfig,
        ),
        PluginSpec("trainer", "heads", "specdec_drafters.heads.trainer:HeadsTrainer", settings.HeadsTrainerConfig),
        PluginSpec(
            "trainer", "parallel", "specdec_drafters.parallel:ParallelTrainer", settings.ParallelTrainerConfig
        ),
        PluginSpec(
            "trainer", "eagle3", "specdec_drafters.eagle3.trainer:Eagle3Trainer", settings.Eagle3TrainerConfig
        ),
    ]
