"""Registers the drafters and their trainers with specdec. Importing this imports no torch."""

from __future__ import annotations

from specdec_core.interface import Capabilities, PluginSpec
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
from specdec_drafters.prompt_copy.config import PromptCopyConfig
from specdec_drafters.quantised.config import QuantisedConfig
from specdec_drafters.random.config import RandomConfig
from specdec_drafters.suffix.config import SuffixConfig
from specdec_drafters.transformer.config import TransformerConfig, TransformerTrainerConfig
from specdec_drafters.translated.config import TranslatedConfig


@hookimpl
def specdec_drafters() -> list[PluginSpec]:
    """Register the drafters."""
    return [
        PluginSpec(
            kind="drafter",
            name="random",
            factory="specdec_drafters.random.drafter:RandomDrafter",
            config=RandomConfig,
            summary="Every token with the same probability: the floor for all other drafters.",
            capabilities=Capabilities(token_ids_only=True),
        ),
        PluginSpec(
            kind="drafter",
            name="prompt-copy",
            aliases=("prompt-lookup",),
            factory="specdec_drafters.prompt_copy.drafter:PromptCopyDrafter",
            config=PromptCopyConfig,
            summary="Copies the continuation of an earlier match of the last tokens (prompt lookup).",
            capabilities=Capabilities(token_ids_only=True),
        ),
        PluginSpec(
            kind="drafter",
            name="suffix",
            factory="specdec_drafters.suffix.drafter:SuffixDrafter",
            config=SuffixConfig,
            summary="Continues the longest match in the request and in earlier ones (suffix decoding).",
            capabilities=Capabilities(token_ids_only=True),
        ),
        PluginSpec(
            kind="drafter",
            name="datastore",
            factory="specdec_drafters.datastore.drafter:DatastoreDrafter",
            config=DatastoreConfig,
            summary="Continues the longest match in a corpus (retrieval, as REST).",
            capabilities=Capabilities(token_ids_only=True),
        ),
        PluginSpec(
            kind="drafter",
            name="ngram",
            factory="specdec_drafters.ngram.drafter:NgramDrafter",
            config=NgramConfig,
            summary="An n-gram model over tokens, from an ARPA file or counted from a text.",
            capabilities=Capabilities(token_ids_only=True),
        ),
        PluginSpec(
            kind="drafter",
            name="transformer",
            factory="specdec_drafters.transformer.drafter:TransformerDrafter",
            config=TransformerConfig,
            summary="A smaller Hugging Face model with the target's vocabulary.",
        ),
        PluginSpec(
            kind="drafter",
            name="early-exit",
            factory="specdec_drafters.early_exit.drafter:EarlyExitDrafter",
            config=EarlyExitConfig,
            summary="The target's first layers with its own head, optionally trained (self-speculation).",
            capabilities=Capabilities(needs_model=True),
        ),
        PluginSpec(
            kind="drafter",
            name="quantised",
            factory="specdec_drafters.quantised.drafter:QuantisedDrafter",
            config=QuantisedConfig,
            summary="A copy of the target with weights of 8 or 4 bits (self-speculation).",
            capabilities=Capabilities(needs_model=True),
        ),
        PluginSpec(
            kind="drafter",
            name="heads",
            factory="specdec_drafters.heads.drafter:HeadsDrafter",
            config=HeadsConfig,
            summary="Trained heads on the target's last hidden state draft several tokens at once.",
            capabilities=Capabilities(needs_hidden_states=True),
        ),
        PluginSpec(
            kind="drafter",
            name="eagle3",
            factory="specdec_drafters.eagle3.drafter:Eagle3Drafter",
            config=Eagle3Config,
            summary="An EAGLE-3 head from a speculators checkpoint, on the hidden states of the target's layers.",
            capabilities=Capabilities(needs_hidden_states=True),
        ),
        PluginSpec(
            kind="drafter",
            name="dflash",
            factory="specdec_drafters.dflash.drafter:DFlashDrafter",
            config=DFlashConfig,
            summary="A DFlash head from a speculators checkpoint drafts a block in one forward pass.",
            capabilities=Capabilities(needs_hidden_states=True),
        ),
        PluginSpec(
            kind="drafter",
            name="mtp",
            factory="specdec_drafters.mtp.drafter:MtpDrafter",
            config=MtpConfig,
            summary="An MTP layer from a speculators checkpoint, on the target's last hidden states.",
            capabilities=Capabilities(needs_hidden_states=True),
        ),
        PluginSpec(
            kind="drafter",
            name="hierarchical",
            factory="specdec_drafters.hierarchical.drafter:HierarchicalDrafter",
            config=HierarchicalConfig,
            summary="A draft model that is itself accelerated by another drafter, to any depth.",
        ),
        PluginSpec(
            kind="drafter",
            name="chain",
            factory="specdec_drafters.chain.drafter:ChainDrafter",
            config=ChainConfig,
            summary="Falls back to the next drafter when one has no draft.",
            capabilities=Capabilities(token_ids_only=True),
        ),
        PluginSpec(
            kind="drafter",
            name="translated",
            factory="specdec_drafters.translated.drafter:TranslatedDrafter",
            config=TranslatedConfig,
            summary="A drafter whose tokenizer is not the target's.",
            capabilities=Capabilities(needs_tokenizer=True),
        ),
    ]


@hookimpl
def specdec_trainers() -> list[PluginSpec]:
    """Register the trainers, each under the name of its drafter."""
    return [
        PluginSpec(
            kind="trainer",
            name="ngram",
            factory="specdec_drafters.ngram.trainer:NgramTrainer",
            config=NgramTrainerConfig,
            summary="An interpolated modified Kneser-Ney n-gram model over the target's tokens, as an ARPA file.",
        ),
        PluginSpec(
            kind="trainer",
            name="transformer",
            factory="specdec_drafters.transformer.trainer:TransformerTrainer",
            config=TransformerTrainerConfig,
            summary="A small Hugging Face model, on a text's tokens or the target's distributions.",
        ),
        PluginSpec(
            kind="trainer",
            name="early-exit",
            factory="specdec_drafters.early_exit.trainer:EarlyExitTrainer",
            config=EarlyExitTrainerConfig,
            summary="An exit after some of the target's layers, for the early-exit drafter.",
        ),
        PluginSpec(
            kind="trainer",
            name="heads",
            factory="specdec_drafters.heads.trainer:HeadsTrainer",
            config=HeadsTrainerConfig,
            summary="Heads on the target's last hidden state, for the heads drafter.",
        ),
        PluginSpec(
            kind="trainer",
            name="eagle3",
            factory="specdec_drafters.eagle3.trainer:Eagle3Trainer",
            config=Eagle3TrainerConfig,
            summary="An EAGLE-3 head on the hidden states of the target's layers, as a speculators checkpoint.",
        ),
    ]
