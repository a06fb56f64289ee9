"""Making what a study describes: target, prompts, drafters, controllers, and the decoder of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from specdec_core.border import Drafter, PluginConfig, PluginKind
from specdec_core.decoding import Decoder, check_prompts
from specdec_core.errors import PluginError
from specdec_core.models import LoadedModel, inflate, load_model, pack
from specdec_core.registry import Registry, unmet_needs
from specdec_core.settings import SamplingSettings
from specdec_core.study.config import TargetConfig
from specdec_core.study.prompts import PromptText, encode_prompts
from specdec_core.study.source import dotted
from specdec_core.study.study import Run


def load_target(config: TargetConfig, folder: Path = Path()) -> LoadedModel:
    """Load a study's target, inflated and packed where the study says so.

    Args:
        config: What the study says.
        folder: Where a relative folder is meant from.

    Raises:
        ModelError: It cannot be loaded, decoded exactly, inflated or packed.
    """
    settings = config.model_dump(exclude={"inflate", "packed"})
    if config.inflate is None:
        return load_model(**settings, packed=config.packed, folder=folder)
    larger = inflate(load_model(**settings, folder=folder), **config.inflate.model_dump())
    return pack(larger) if config.packed else larger


def ready_prompts(
    target: LoadedModel, prompts: Sequence[PromptText], chat_template: str | None = None
) -> list[str | list[int]]:
    """Return prompts as a decoder of the target takes them, all of them checked.

    Args:
        target: The target, loaded.
        prompts: What was read.
        chat_template: What writes chats out in the place of the tokenizer's own template; None for that.

    Raises:
        PromptError: There is no tokenizer or no template for a chat, or the target cannot take some of them: then
            with a line for each of the first.
    """
    encoded = encode_prompts(prompts, target.tokenizer, model=target.name, chat_template=chat_template)
    check_prompts(target, encoded, [repr(prompt.id) for prompt in prompts])
    return encoded


def make_decoder(
    target: LoadedModel,
    run: Run,
    *,
    registry: Registry,
    sampling: SamplingSettings,
    batch_size: int = 1,
    folder: Path = Path(),
    strict: bool = False,
) -> Decoder:
    """Load a run's drafter and controllers and return their decoder.

    Args:
        target: The target, loaded.
        run: Settings of drafter and controllers.
        registry: Where plugins come from.
        sampling: The target's settings.
        batch_size: How many prompts will be decoded together.
        folder: Where relative paths are meant from.
        strict: Raise when a plugin fails.

    Raises:
        PluginError: When a plugin cannot be loaded, or cannot do what is asked of it.
    """
    if run.drafter is None:
        return Decoder(target, sampling=sampling, strict=strict)
    return Decoder(
        target,
        make_drafter(target, run.drafter, registry=registry, batch_size=batch_size, folder=folder),
        gamma=_controller(registry, "gamma", run.gamma),
        lenience=_controller(registry, "lenience", run.lenience),
        sampling=sampling,
        draft_sampling=run.draft_sampling,
        strict=strict,
    )


def make_drafter(
    target: LoadedModel,
    config: PluginConfig,
    *,
    registry: Registry,
    batch_size: int = 1,
    folder: Path = Path(),
) -> Drafter:
    """Load a drafter for a target.

    Args:
        target: The target, loaded.
        config: The drafter's settings, name included.
        registry: Where plugins come from.
        batch_size: How many prompts will be decoded together.
        folder: Where relative paths are meant from.

    Raises:
        PluginError: When it cannot be loaded, or cannot do what is asked of it.
    """
    needs = unmet_needs(
        registry,
        config,
        encoder_decoder=target.encoder_decoder,
        batch_size=batch_size,
        has_tokenizer=target.tokenizer is not None,
        has_hidden_states=target.features is not None,
        folder=folder,
    )
    for keys, error in needs:
        raise PluginError(f"{dotted(keys)}: {error}" if keys else str(error)) from error
    drafter: Drafter = registry.create("drafter", _name(config), config, target.info(folder))
    return drafter


def _controller(registry: Registry, kind: PluginKind, config: PluginConfig | None) -> Any:
    return None if config is None else registry.create(kind, _name(config), config)


def _name(config: PluginConfig) -> str:
    # The models that a study is read with add the plugin's name to its settings.
    name: str = cast("Any", config).name
    return name
