"""Checks of a plugin's settings against the target and the models they name, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from specdec_core.interface.errors import ModelError, PluginError
from specdec_core.interface.settings import ModelSettings
from specdec_core.models.load.resolve import has_encoder, near_miss, read_config
from specdec_core.models.load.vocabulary import Vocabulary, local_vocabulary, vocabulary_difference
from specdec_core.registry.nesting import Keys, nested_settings
from specdec_core.registry.registry import Registry
from specdec_core.registry.requirements import TargetFacts, check_requirements, encoder_mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdec_core.interface import PluginConfig
    from specdec_core.interface.spec import PluginKind


def unmet_requirements(
    registry: Registry,
    config: PluginConfig,
    target: TargetFacts,
    kind: PluginKind = "drafter",
    *,
    vocabulary: Vocabulary | None = None,
    folder: Path = Path(),
) -> Iterator[tuple[Keys, PluginError]]:
    """Yield the unmet requirements of a plugin and of the plugins nested in its settings.

    A config that derives from `ModelSettings` names a draft model, which must have an encoder exactly when the
    target has one, and the target's token ids. Nested plugins with `Nested.same_target=False` draft for that model
    instead of the target; of it no more is known before it is loaded. A setting that refers to a file of a
    collection of models must spell the collection's name right.

    Args:
        registry: Where to look up plugins.
        config: The plugin's settings, including its name.
        target: What is known of the target.
        kind: The plugin's kind.
        vocabulary: The target's tokens, as `local_vocabulary` returns them.
        folder: Base for relative paths.

    Yields:
        The keys that lead to the plugin in the settings, and the error.
    """
    name: str = cast("Any", config).name
    try:
        check_requirements(registry.spec(kind, name), target)
    except PluginError as error:
        yield (), error
    draft_model = TargetFacts()
    if isinstance(config, ModelSettings):
        # A folder that is not there may be written before the run; one that resembles another is misspelt.
        if config.model and (near := near_miss(config.model, folder)) is not None:
            yield ("model",), PluginError(near)
        encoder = has_encoder(config.model, folder, config.subfolder) if config.model else None
        mismatch = encoder_mismatch(
            name, config.model, model_has_encoder=encoder, target_has_encoder=target.encoder_decoder
        )
        if mismatch is not None:
            yield ("model",), PluginError(mismatch)
        if target.has_model is False and read_config(config.model, folder, config.subfolder).get(
            "modules_of_target"
        ):
            yield (
                ("model",),
                PluginError(f"{config.model} has weights of its target, and this target is not loaded."),
            )
        draft = local_vocabulary(config.model, folder, config.subfolder) if config.model and vocabulary else None
        if draft is not None and vocabulary is not None:
            try:
                vocabulary_difference(name, config.model, vocabulary, draft, whole=False)
            except ModelError as error:
                yield ("model",), PluginError(str(error))
        draft_model = TargetFacts(target.encoder_decoder if encoder is None else encoder)
    for nested in nested_settings(config):
        unmet = unmet_requirements(
            registry,
            nested.config,
            target if nested.marker.same_target else draft_model,
            nested.marker.kind,
            vocabulary=vocabulary if nested.marker.same_tokens else None,
            folder=folder,
        )
        yield from (((*nested.keys, *keys), error) for keys, error in unmet)
