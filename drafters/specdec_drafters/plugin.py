"""What this distribution announces to specdec. Importing this imports no torch."""

from __future__ import annotations

from specdec_core.border import PluginSpec
from specdec_core.registry import hookimpl
from specdec_drafters.configs import NgramConfig, PromptCopyConfig, RandomConfig, TransformerConfig


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
            factory="specdec_drafters.ngram:NgramDrafter",
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
    ]
