"""What this distribution announces to specdec. Importing this imports no torch."""

from __future__ import annotations

from specdec_core.border import Capabilities, PluginSpec
from specdec_core.registry import hookimpl
from specdec_drafters.configs import (
    ChainConfig,
    HeadsConfig,
    HeadsTrainerConfig,
    HierarchicalConfig,
    NgramConfig,
    NgramTrainerConfig,
    PromptCopyConfig,
    RandomConfig,
    TransformerConfig,
    TransformerTrainerConfig,
)

SPECDEC_BORDER = "1.0"
"""The border that these were built for."""


@hookimpl
def specdec_drafters() -> list[PluginSpec]:
    """Announce the drafters."""
    return [
        PluginSpec(
            kind="drafter",
            name="random",
            factory="specdec_drafters.uniform:RandomDrafter",
            config=RandomConfig,
            summary="Any token, all equally likely: the floor for every other drafter.",
        ),
        PluginSpec(
            kind="drafter",
            name="prompt-copy",
            factory="specdec_drafters.prompt_copy:PromptCopyDrafter",
            config=PromptCopyConfig,
            summary="Copies what followed the last tokens the last time they occurred.",
        ),
        PluginSpec(
            kind="drafter",
            name="ngram",
            factory="specdec_drafters.ngram.drafter:NgramDrafter",
            config=NgramConfig,
            summary="What usually follows the last few tokens, from an ARPA file or a counted text.",
        ),
        PluginSpec(
            kind="drafter",
            name="transformer",
            factory="specdec_drafters.transformer:TransformerDrafter",
            config=TransformerConfig,
            summary="A smaller Hugging Face model with the target's vocabulary.",
        ),
        PluginSpec(
            kind="drafter",
            name="heads",
            factory="specdec_drafters.heads.drafter:HeadsDrafter",
            config=HeadsConfig,
            summary="Trained heads on the target's last hidden state guess several tokens in one go.",
            capabilities=Capabilities(needs_hidden_states=True),
        ),
        PluginSpec(
            kind="drafter",
            name="hierarchical",
            factory="specdec_drafters.hierarchical:HierarchicalDrafter",
            config=HierarchicalConfig,
            summary="A model that drafts and is itself accelerated by another drafter, to any depth.",
        ),
        PluginSpec(
            kind="drafter",
            name="chain",
            factory="specdec_drafters.chain:ChainDrafter",
            config=ChainConfig,
            summary="Asks one drafter after another, until one has something.",
        ),
    ]


@hookimpl
def specdec_trainers() -> list[PluginSpec]:
    """Announce the trainers, each called as the drafter it makes."""
    return [
        PluginSpec(
            kind="trainer",
            name="ngram",
            factory="specdec_drafters.ngram.trainer:NgramTrainer",
            config=NgramTrainerConfig,
            summary="Interpolated modified Kneser-Ney n-grams over the target's tokens, as an ARPA file.",
        ),
        PluginSpec(
            kind="trainer",
            name="transformer",
            factory="specdec_drafters.training.transformer:TransformerTrainer",
            config=TransformerTrainerConfig,
            summary="A smaller Hugging Face model, on the text's tokens or on the target's distributions.",
        ),
        PluginSpec(
            kind="trainer",
            name="heads",
            factory="specdec_drafters.heads.trainer:HeadsTrainer",
            config=HeadsTrainerConfig,
            summary="Heads on the target's last hidden state, for the drafter that guesses in one go.",
        ),
    ]
