"""Checks of a plugin's declared requirements against the target and the batch, before anything is loaded."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Self, cast

from specdec_core.interface import DrafterConfig, ModelSettings, PluginConfig, PluginError, PluginSpec, TargetInfo
from specdec_core.registry.hookspecs import KIND_LABELS
from specdec_core.registry.nesting import Keys, nested_settings


class TargetFacts(NamedTuple):
    """What is known of a target that drafters may need; None is not known yet, and not checked.

    Attributes:
        encoder_decoder: Whether the target is an encoder-decoder model.
        has_tokenizer: Whether the target has a tokenizer.
        has_hidden_states: Whether the target has an output embedding, whose inputs are the hidden states that
            drafters see.
        has_model: Whether the target's model is there for drafters made of its weights.
    """

    encoder_decoder: bool | None = None
    has_tokenizer: bool | None = None
    has_hidden_states: bool | None = None
    has_model: bool | None = None

    @classmethod
    def of(cls, target: TargetInfo) -> Self:
        """Return the facts of a target that is known."""
        has = (part is not None for part in (target.tokenizer, target.features, target.model))
        return cls(target.encoder_decoder, *has)


def check_requirements(spec: PluginSpec, target: TargetFacts) -> None:
    """Check that a target has what a drafter needs; other plugins need nothing.

    Args:
        spec: The plugin's specification.
        target: What is known of the target.

    Raises:
        PluginError: The plugin declares that it cannot do this. The message names the plugin, the requirement and
            the fix.
    """
    config = spec.config
    if not issubclass(config, DrafterConfig):
        return
    reason = None
    if target.encoder_decoder is True and config.targets == "decoder-only":
        reason = "works for decoder-only targets, but this target has an encoder; choose another drafter or target"
    elif target.encoder_decoder is False and config.targets == "encoder-decoder":
        reason = (
            "works for encoder-decoder targets, but this target has no encoder; choose another drafter or target"
        )
    elif config.needs_tokenizer and target.has_tokenizer is False:
        reason = "reads text, but this target has no tokenizer; add the tokenizer's files to the target's folder"
    elif config.needs_hidden_states and target.has_hidden_states is False:
        reason = (
            "needs hidden states, but this target has no output embedding to read them from, or is drafted for in "
            "other tokens; choose another drafter or target"
        )
    elif config.needs_model and target.has_model is False:
        reason = (
            "is made of the target's own weights, but this target is not loaded, or is drafted for in other "
            "tokens; choose another drafter or target"
        )
    if reason is not None:
        raise PluginError(f"{KIND_LABELS[spec.kind]} {spec.name!r} {reason}.")


def encoder_mismatch(
    drafter: str, model: str, *, model_has_encoder: bool | None, target_has_encoder: bool | None
) -> str | None:
    """Return an error message when only one of a draft model and its target has an encoder.

    Args:
        drafter: Name of the drafter that uses the draft model.
        model: The draft model, as the user wrote it.
        model_has_encoder: Whether the draft model has an encoder; None if unknown.
        target_has_encoder: Whether the target has an encoder; None if unknown.

    Returns:
        The message, or None if they match or either is unknown.
    """
    if model_has_encoder is None or target_has_encoder is None or model_has_encoder == target_has_encoder:
        return None
    if model_has_encoder:
        return (
            f"drafter {drafter!r}: {model} has an encoder, which needs a source to read, but the target has none. "
            "Choose a decoder-only model of the target's family."
        )
    return (
        f"drafter {drafter!r}: {model} has no encoder, so it cannot read the source that the target is "
        "conditioned on. Choose an encoder-decoder model of the target's family, or a drafter without a model of "
        "its own: one that copies from the source, or looks up n-grams."
    )


def beyond_token_ids(config: PluginConfig) -> Iterator[tuple[Keys, str, str]]:
    """Yield what a drafter, and the drafters nested in its settings, need beyond the committed token ids.

    Args:
        config: The drafter's settings, including its name.

    Yields:
        The keys that lead to the drafter in the settings, its name, and what it needs.
    """
    name: str = cast("Any", config).name
    assert isinstance(config, DrafterConfig)
    if config.needs_hidden_states:
        yield (), name, "works on the target's hidden states"
    elif isinstance(config, ModelSettings):
        yield (), name, "brings its own model"
    elif not config.token_ids_only:
        yield (), name, "does not declare token_ids_only = True in its settings"
    else:
        for nested in nested_settings(config):
            if nested.marker.kind == "drafter":
                more = beyond_token_ids(nested.config)
                yield from (((*nested.keys, *keys), inner, needs) for keys, inner, needs in more)
