"""Where a model lies, and what its folder says of it before it is loaded. Importing this imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specdec_core.errors import ModelError
from specdec_core.shipped import BUILTIN_PREFIX, builtin_model

_WITHOUT_ENCODER = ("ForCausalLM", "LMHeadModel")
"""How classes of decoder-only models are called."""


def model_folder(model: str | Path, folder: Path = Path()) -> Path | None:
    """Return the folder of a model that is on this machine by itself; None for one that only the hub may know.

    Args:
        model: A folder, a hub name, or a built-in one.
        folder: Where a relative folder is meant from.

    Raises:
        ModelError: There is no such built-in model, or no folder where one is meant.
    """
    if str(model).startswith(BUILTIN_PREFIX):
        return builtin_model(str(model))
    place = (folder / Path(model).expanduser()).resolve()
    if place.is_dir():
        return place
    # A hub name is `name` or `owner/name`; anything else was meant as a path.
    if place.is_file() or str(model).startswith((".", "/", "~")) or str(model).count("/") > 1:
        raise ModelError(
            f"{model}: there is no such folder ({place}). Give a folder written by save_pretrained(), a hub name "
            "such as owner/name, or builtin:target."
        )
    return None


def has_encoder(model: str | Path, folder: Path = Path()) -> bool | None:
    """Return whether a model has an encoder; None where that cannot be known before it is loaded.

    Args:
        model: A folder, a hub name, or a built-in one.
        folder: Where a relative folder is meant from.
    """
    try:
        place = model_folder(model, folder)
        said: Any = {} if place is None else json.loads((place / "config.json").read_text(encoding="utf-8"))
        encoder, classes = said.get("is_encoder_decoder"), said.get("architectures")
    except (ModelError, OSError, ValueError, AttributeError):
        return None
    if isinstance(encoder, bool):
        return encoder
    # The library writes down only that there is one, and a config that was written by hand may not say that.
    decoders = (
        isinstance(classes, list) and classes and all(str(name).endswith(_WITHOUT_ENCODER) for name in classes)
    )
    return False if decoders else None
