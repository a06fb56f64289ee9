"""Loading of the draft model or nested plugins that a drafter's settings name."""

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from specdec_core.interface import (
    ConfigError,
    Drafter,
    GammaController,
    ModelError,
    ModelSettings,
    PluginError,
    TargetInfo,
)
from specdec_core.interface.spec import PluginKind
from specdec_core.models import (
    LoadedModel,
    Vocabulary,
    compile_model,
    load_as_set,
    load_model,
    model_files,
    vocabulary_difference,
)
from specdec_core.registry import encoder_mismatch
from specdec_drafters.common.parallel_draft import mask_token_of


def load_draft_model(config: ModelSettings, target: TargetInfo, drafter: str) -> LoadedModel:
    """Load the model named in a drafter's settings and check that it can draft for the target.

    Args:
        config: The model and how to load it; `device: auto` means the target's device.
        target: The target it drafts for.
        drafter: Name of the drafter, for error messages.

    Raises:
        ModelError: The model cannot be loaded, only one of model and target has an encoder, or their
            vocabularies differ.
    """
    if config.device == "auto" and config.device_map is None:
        config = config.model_copy(update={"device": str(target.device)})
    loaded = load_as_set(config, target.folder, target=target.model)
    mismatch = encoder_mismatch(
        drafter, loaded.name, model_has_encoder=loaded.encoder_decoder, target_has_encoder=target.encoder_decoder
    )
    if mismatch is not None:
        raise ModelError(mismatch)
    check_vocabulary(target, loaded, drafter)
    if target.model is not None and loaded.encoder_decoder:
        _share_encoder(loaded, target.model)
    return loaded


def _share_encoder(draft: LoadedModel, target: LoadedModel) -> None:
    """Give a draft model the target's encoder, if that has the same weights, as a distilled decoder's has.

    It then takes no memory, and what it gave for the target is read by the draft model, too.
    """
    own, shared = draft.model.get_encoder(), target.model.get_encoder()
    ours, theirs = own.state_dict(), shared.state_dict()
    if draft.device != target.device or draft.spread or target.spread or ours.keys() != theirs.keys():
        return
    if all(ours[name].dtype == theirs[name].dtype and ours[name].equal(theirs[name]) for name in ours):
        name = next(name for name, module in draft.model.named_modules() if module is own)
        draft.model.set_submodule(name, shared)


def target_model(target: TargetInfo, drafter: str) -> LoadedModel:
    """Return the target, for a drafter made of its weights.

    Args:
        target: The target.
        drafter: Name of the drafter, for the error message.

    Raises:
        ModelError: It is not loaded, or the drafter does not draft its tokens.
    """
    if target.model is None:
        raise ModelError(
            f"drafter {drafter!r} is made of the target's own weights, but this target is not loaded, or is "
            "drafted for in other tokens. Choose another drafter."
        )
    model: LoadedModel = target.model
    return model


def compiled_like(target: LoadedModel, model: LoadedModel) -> LoadedModel:
    """Return a model made of the target's weights, with compiled passes if the target's are compiled."""
    return model if target.passes is None else compile_model(model)


def check_vocabulary(target: TargetInfo, drafter: LoadedModel, name: str = "transformer") -> None:
    """Reject a draft model whose token ids mean other tokens than the target's.

    If both tokenizers are available, every entry is compared: a few added tokens may differ, and the models may
    pad their logits to different sizes. Otherwise the numbers of logits must be equal; a mask token that the draft
    model adds does not count.

    Args:
        target: The target.
        drafter: The draft model.
        name: Name of the drafter, for error messages.

    Raises:
        ModelError: The vocabularies differ; the message has both sizes and the first differing entries.

    Warns:
        RuntimeWarning: They differ in added or missing tokens.
    """
    if target.tokenizer is None or drafter.tokenizer is None:
        mask = mask_token_of(drafter)
        added = int(mask is not None and target.vocab_size <= mask < drafter.vocab_size)
        if drafter.vocab_size - added != target.vocab_size:
            raise ModelError(
                f"drafter {name!r}: the vocabulary of {drafter.name} has {drafter.vocab_size} entries, the "
                f"target's {target.vocab_size}, and without both tokenizers they cannot be compared. Draft tokens "
                "are token ids of the target: choose a draft model of the target's family."
            )
        return
    both = Vocabulary.of(target.tokenizer), Vocabulary.of(drafter.tokenizer)
    if (differs := vocabulary_difference(name, drafter.name, *both)) is not None:
        warnings.warn(differs, RuntimeWarning, stacklevel=2)


def make_nested(kind: PluginKind, setting: Any, target: TargetInfo, owner: str) -> Any:
    """Return a nested plugin: the given one, or one made from the given settings.

    Args:
        kind: `drafter` or `gamma`.
        setting: A plugin, or the settings of one.
        target: The target of a nested drafter.
        owner: Name of the enclosing drafter, for error messages.

    Raises:
        PluginError: The plugin cannot be made.
    """
    if isinstance(setting, (Drafter, GammaController)):
        return setting
    if target.build is None:
        raise PluginError(
            f"drafter {owner!r} cannot make {setting!r} by itself: pass plugins, or make the drafter through a "
            "registry (registry.create), as studies do."
        )
    return target.build(kind, setting, target)


_SUFFIXES = (".json", ".safetensors", ".model", ".txt", ".jinja", ".tiktoken")
"""Suffixes of the files of a model and its tokenizer."""


def copy_model(config: ModelSettings, folder: Path, drafter: str) -> LoadedModel:
    """Copy the files of a draft model and its tokenizer, those of the hub included, and load the copy.

    Args:
        config: The model.
        folder: An empty folder.
        drafter: Name of the drafter, for error messages.

    Raises:
        ConfigError: vLLM cannot run the model with these settings.
        ModelError: It does not exist, or cannot be loaded.
    """
    for name in ("adapter", "quantization_config"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"drafter {drafter!r}: {name} changes the weights when the model is loaded, and vLLM would load "
                "them without it. Save the changed model with save_pretrained(), and name that folder."
            )
    source = model_files(config.model, revision=config.revision) / (config.subfolder or "")
    if not (source / "config.json").is_file():
        raise ConfigError(f"drafter {drafter!r}: {source} has no config.json; name the folder of a model.")
    keys = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if keys.get("is_encoder_decoder"):
        raise ConfigError(
            f"drafter {drafter!r}: {config.model} has an encoder, and vLLM runs decoder-only draft models. Serve "
            "it with --to transformers."
        )
    for file in source.iterdir():
        if file.is_file() and file.suffix in _SUFFIXES:
            shutil.copyfile(file, folder / file.name)
    dtype = keys.get("dtype") or keys.get("torch_dtype") or "float32"
    return replace(load_model(folder, device="cpu", packed=False, dtype=dtype), name=config.model)
