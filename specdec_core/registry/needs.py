"""What a run asks of its plugins in vain, those nested in the settings of others included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from specdec_core.errors import PluginError
from specdec_core.registry.capabilities import check_capabilities
from specdec_core.registry.nesting import Keys, nested_settings

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
) -> Iterator[tuple[Keys, PluginError]]:
    """Yield what a run asks in vain of a plugin, or of those nested in its settings.

    Nested plugins that do not work for the target itself (`Nested.same_target`) are not held against it: what is
    asked of them is known when the model they work for is loaded.

    Args:
        registry: Where plugins are found.
        config: The plugin's settings, its name included.
        kind: What it plugs into.
        encoder_decoder: As for `check_capabilities`, and so the others.
        batch_size: How many sequences are decoded together.
        has_tokenizer: Whether the target comes with a tokenizer.
        has_hidden_states: Whether the target's hidden states can be had.

    Yields:
        Where in the settings the plugin stands, and what is wrong.
    """
    of_the_target: dict[str, bool | None] = {
        "encoder_decoder": encoder_decoder,
        "has_tokenizer": has_tokenizer,
        "has_hidden_states": has_hidden_states,
    }
    try:
        spec = registry.spec(kind, cast("Any", config).name)
        check_capabilities(spec, batch_size=batch_size, **of_the_target)
    except PluginError as error:
        yield (), error
    for inner in nested_settings(config):
        known = of_the_target if inner.marker.same_target else {}
        found = unmet_needs(registry, inner.config, inner.marker.kind, batch_size=batch_size, **known)
        yield from (((*inner.keys, *keys), error) for keys, error in found)
