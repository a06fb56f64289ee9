"""What a run asks of its plugins in vain, those nested in the settings of others included."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from specdec_core.errors import PluginError
from specdec_core.model_folder import has_encoder
from specdec_core.registry.capabilities import check_capabilities, encoder_mismatch
from specdec_core.registry.nesting import Keys, nested_settings
from specdec_core.settings import ModelSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specdec_core.border import PluginConfig, PluginKind
    from specdec_core.registry.registry import Registry


def unmet_needs(
    registry: Registry,
    config: PluginConfig,
    kind: PluginKind = "drafter",
    *,
    encoder_decoder: bool | None = None,
    batch_size: int | None = None,
    has_tokenizer: bool | None = None,
    has_hidden_states: bool | None = None,
    folder: Path = Path(),
) -> Iterator[tuple[Keys, PluginError]]:
    """Yield what a run asks in vain of a plugin, or of those nested in its settings.

    Settings that are those of a model (`ModelSettings`) name one that drafts for the target, so it must have an
    encoder where the target has one, and only there. Nested plugins that do not work for the target itself
    (`Nested.same_target`) work for that model, of which only its encoder is known before it is loaded.

    Args:
        registry: Where plugins are found.
        config: The plugin's settings, its name included.
        kind: What it plugs into.
        encoder_decoder: As for `check_capabilities`, and so the others.
        batch_size: How many sequences are decoded together.
        has_tokenizer: Whether the target comes with a tokenizer.
        has_hidden_states: Whether the target's hidden states can be had.
        folder: Where relative paths are meant from.

    Yields:
        Where in the settings the plugin stands, and what is wrong.
    """
    of_the_target: dict[str, bool | None] = {
        "encoder_decoder": encoder_decoder,
        "has_tokenizer": has_tokenizer,
        "has_hidden_states": has_hidden_states,
    }
    name: str = cast("Any", config).name
    try:
        check_capabilities(registry.spec(kind, name), batch_size=batch_size, **of_the_target)
    except PluginError as error:
        yield (), error
    of_its_model: dict[str, bool | None] = {}
    if isinstance(config, ModelSettings):
        encoder = has_encoder(config.model, folder)
        mismatch = encoder_mismatch(name, config.model, encoder=encoder, target=encoder_decoder)
        if mismatch is not None:
            yield ("model",), PluginError(mismatch)
        of_its_model["encoder_decoder"] = encoder_decoder if encoder is None else encoder
    for inner in nested_settings(config):
        known = of_the_target if inner.marker.same_target else of_its_model
        found = unmet_needs(
            registry, inner.config, inner.marker.kind, batch_size=batch_size, folder=folder, **known
        )
        yield from (((*inner.keys, *keys), error) for keys, error in found)
