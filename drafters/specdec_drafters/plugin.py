"""The registration of the drafters and their trainers with specdec. Importing this imports no torch."""

from typing import Any

from specdec_core.interface import PluginConfig, PluginSpec
from specdec_core.interface.spec import PluginKind
from specdec_core.registry import hookimpl
from specdec_drafters import settings


def _spec(kind: PluginKind, name: str, where: str, config: type[PluginConfig], **more: Any) -> PluginSpec:
    return PluginSpec(kind, name, f"specdec_drafters.{where}", config, **more)


@hookimpl
def specdec_drafters() -> list[PluginSpec]:
    """Register the drafters."""
    return [
        _spec("drafter", "random", "random:RandomDrafter", settings.RandomConfig),
        _spec(
            "drafter",
            "prompt-copy",
            "prompt_copy:PromptCopyDrafter",
            settings.PromptCopyConfig,
            aliases=("prompt-lookup",),
        ),
        _spec("drafter", "suffix", "suffix:SuffixDrafter", settings.SuffixConfig),
        _spec("drafter", "datastore", "datastore:DatastoreDrafter", settings.DatastoreConfig),
        _spec("drafter", "ngram", "ngram.drafter:NgramDrafter", settings.NgramConfig),
        _spec("drafter", "transformer", "transformer:TransformerDrafter", settings.TransformerConfig),
        _spec("drafter", "early-exit", "early_exit.drafter:EarlyExitDrafter", settings.EarlyExitConfig),
        _spec("drafter", "quantized", "quantized:QuantizedDrafter", settings.QuantizedConfig),
        _spec("drafter", "heads", "heads.drafter:HeadsDrafter", settings.HeadsConfig),
        _spec("drafter", "parallel", "parallel:ParallelDrafter", settings.ParallelConfig),
        _spec("drafter", "eagle3", "eagle3.drafter:Eagle3Drafter", settings.Eagle3Config),
        _spec("drafter", "dflash", "dflash:DFlashDrafter", settings.DFlashConfig),
        _spec("drafter", "mtp", "mtp:MtpDrafter", settings.MtpConfig),
        _spec("drafter", "assistant", "assistant:AssistantDrafter", settings.AssistantConfig),
        _spec("drafter", "hierarchical", "hierarchical:HierarchicalDrafter", settings.HierarchicalConfig),
        _spec("drafter", "chain", "chain:ChainDrafter", settings.ChainConfig),
        _spec("drafter", "translated", "translated.drafter:TranslatedDrafter", settings.TranslatedConfig),
    ]


@hookimpl
def specdec_trainers() -> list[PluginSpec]:
    """Register the trainers, each under the name of its drafter."""
    return [
        _spec("trainer", "ngram", "ngram.trainer:NgramTrainer", settings.NgramTrainerConfig),
        _spec("trainer", "transformer", "transformer:TransformerTrainer", settings.TransformerTrainerConfig),
        _spec("trainer", "early-exit", "early_exit.trainer:EarlyExitTrainer", settings.EarlyExitTrainerConfig),
        _spec("trainer", "heads", "heads.trainer:HeadsTrainer", settings.HeadsTrainerConfig),
        _spec("trainer", "parallel", "parallel:ParallelTrainer", settings.ParallelTrainerConfig),
        _spec("trainer", "eagle3", "eagle3.trainer:Eagle3Trainer", settings.Eagle3TrainerConfig),
    ]
