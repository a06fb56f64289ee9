"""Loading a Hugging Face model that is to draft for a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core.errors import ModelError
from specdec_core.models import load_model
from specdec_core.registry import encoder_mismatch
from specdec_drafters.vocabulary import check_vocabulary

if TYPE_CHECKING:
    from specdec_core.border import TargetInfo
    from specdec_core.models import LoadedModel
    from specdec_core.settings import ModelSettings


def load_draft_model(config: ModelSettings, target: TargetInfo, drafter: str) -> LoadedModel:
    """Return the model that a drafter's settings name, where it can draft for the target.

    Args:
        config: Which model, and how it is loaded; `device: auto` is the target's device.
        target: What it drafts for.
        drafter: The drafter's name, for messages.

    Raises:
        ModelError: It cannot be loaded, has an encoder where the target has none or none where it has one, or
            numbers its tokens otherwise.
    """
    loaded = load_model(
        config.model,
        dtype=config.dtype,
        device=str(target.device) if config.device == "auto" else config.device,
        device_map=config.device_map,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
        packed=config.packed,
        folder=target.folder,
    )
    mismatch = encoder_mismatch(
        drafter, loaded.name, encoder=loaded.encoder_decoder, target=target.encoder_decoder
    )
    if mismatch is not None:
        raise ModelError(mismatch)
    check_vocabulary(target, loaded, drafter)
    return loaded
