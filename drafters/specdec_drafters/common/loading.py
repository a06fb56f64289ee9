"""Load what a drafter's settings name: a draft model, or nested plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdec_core.interface import Drafter, GammaController, ModelError, ModelSettings, PluginError
from specdec_core.models import load_model
from specdec_core.registry import encoder_mismatch

if TYPE_CHECKING:
    from specdec_core.interface import PluginKind, TargetInfo
    from specdec_core.models import LoadedModel

_SHOWN = 3
"""Differing vocabulary entries listed in an error message."""


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
    settings = {name: getattr(config, name) for name in ModelSettings.model_fields}
    if config.device == "auto" and config.device_map is None:
        settings["device"] = str(target.device)
    loaded = load_model(**settings, folder=target.folder)
    mismatch = encoder_mismatch(
        drafter, loaded.name, model_has_encoder=loaded.encoder_decoder, target_has_encoder=target.encoder_decoder
    )
    if mismatch is not None:
        raise ModelError(mismatch)
    check_vocabulary(target, loaded, drafter)
    return loaded


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


def check_vocabulary(target: TargetInfo, drafter: LoadedModel, name: str = "transformer") -> None:
    """Refuse a draft model whose token ids mean other tokens than the target's.

    If both tokenizers are available, every entry is compared; the models may then pad their logits to different
    sizes. Otherwise the numbers of logits must be equal.

    Args:
        target: The target.
        drafter: The draft model.
        name: Name of the drafter, for error messages.

    Raises:
        ModelError: The vocabularies differ; the message has both sizes and the first differing entries.
    """
    whose = f"drafter {name!r}: the vocabulary of {drafter.name}"
    advice = "Draft tokens are token ids of the target: choose a draft model of the target's family."
    if target.tokenizer is None or drafter.tokenizer is None:
        if drafter.vocab_size != target.vocab_size:
            raise ModelError(
                f"{whose} has {drafter.vocab_size} entries, the target's {target.vocab_size}, and without both "
                f"tokenizers they cannot be compared. {advice}"
            )
        return
    theirs, ours = _entries(target.tokenizer), _entries(drafter.tokenizer)
    differing = [id_ for id_ in sorted(theirs.keys() | ours.keys()) if theirs.get(id_) != ours.get(id_)]
    if differing:
        shown = "; ".join(
            f"id {id_}: target {_shown(theirs, id_)}, drafter {_shown(ours, id_)}" for id_ in differing[:_SHOWN]
        )
        raise ModelError(
            f"{whose} has {len(ours)} entries, the target's {len(theirs)}, and {len(differing)} differ. "
            f"The first: {shown}. {advice} Or wrap it in the drafter 'translated'."
        )


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


def _entries(tokenizer: Any) -> dict[int, str]:
    return {id_: token for token, id_ in tokenizer.get_vocab().items()}


def _shown(entries: dict[int, str], id_: int) -> str:
    return repr(entries[id_]) if id_ in entries else "nothing"
