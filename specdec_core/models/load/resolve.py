"""A model's folder and its config, found before the model is loaded. Importing this imports no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec_core.interface.errors import ModelError, did_you_mean, exception_text
from specdec_core.interface.files import input_path
from specdec_core.registry.shipped import is_shipped, shipped_file

_DECODER_ONLY_SUFFIXES = ("ForCausalLM", "LMHeadModel")
"""Suffixes of the class names of decoder-only models."""
_CONFIGS = ("config.json", "adapter_config.json")
"""A folder with one of these holds a model or an adapter."""
_INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
"""A folder with one of these holds a tokenizer."""
_HUB_SECONDS = 10.0
"""How long the hub may take to answer."""


def model_folder(model: str | Path, folder: Path = Path()) -> Path | None:
    """Return the folder of a local model or of one that ships, or None for a hub name.

    Args:
        model: A folder, a hub name, or a model that ships, such as `builtin:target`.
        folder: Base for relative paths.

    Raises:
        ModelError: No installed collection has this model; the folder does not exist, and the hub allows no such
            name; no folder can have it; or it resembles a model's folder there, and is not in the cache of
            the hub.
    """
    if (shipped := shipped_file(model, "model", "generation_config.json", folder)) is not None:
        return shipped.parent
    path = input_path(model, folder, ModelError).resolve()
    if path.is_dir():
        return path
    # Hub names are `name` or `owner/name`; anything else is a path.
    is_path = path.is_file() or str(model).startswith((".", "/", "~")) or str(model).count("/") > 1
    if not is_path and (near := near_miss(model, folder)) is not None:
        raise ModelError(near)
    if is_path or not _may_be_on_hub(str(model)):
        raise ModelError(
            f"{model}: no such folder ({path}). Give a folder written by save_pretrained(), a hub name "
            "such as owner/name, or builtin:target."
        )
    return None


def _may_be_on_hub(name: str) -> bool:
    """Return whether the hub allows a name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def model_files(model: str, folder: Path = Path(), revision: str | None = None) -> Path:
    """Return the folder with a model's files; those of the hub are downloaded unless they are there.

    Args:
        model: A folder, a hub name, or a model that ships, such as `builtin:target`.
        folder: Base for relative paths.
        revision: Branch, tag or commit of a hub model.

    Raises:
        ModelError: There is no such model.
    """
    return model_folder(model, folder) or downloaded(model, revision=revision)


def downloaded(name: str, **options: Any) -> Path:
    """Return the folder with the files of a hub model or adapter, which are downloaded unless they are there.

    Args:
        name: The name on the hub.
        options: As for `snapshot_download` of huggingface_hub.

    Raises:
        ModelError: It cannot be downloaded.
    """
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, **options))
    except Exception as error:  # of whatever library makes the connection
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{name}: no such folder, and downloading it from the hub failed: {reason} Check the name, the "
            "network (HF_HUB_OFFLINE?) and, for gated models, that you are logged in."
        ) from error


def near_miss(model: str | Path, folder: Path = Path()) -> str | None:
    """Return a message for a name that is not a model, here or in the cache of the hub, but resembles a folder.

    Args:
        model: A folder, a hub name, or a model that ships.
        folder: Base for relative paths.
    """
    if is_shipped(model):
        return None
    try:
        path = input_path(model, folder, ModelError).resolve()
    except ModelError:  # no folder can have this name; loading it says so
        return None
    near = "" if path.is_dir() else did_you_mean(path.name, _models_in(path.parent))
    if not near or _is_cached(str(model)):
        return None
    return (
        f"{model}: no such folder ({path}).{near} If you mean a model of the hub, download it first: "
        f"hf download {model}"
    )


def _models_in(folder: Path) -> list[str]:
    """Return the names of the folders with a model or an adapter in a folder; none if it cannot be read."""
    try:
        return [one.name for one in folder.iterdir() if any((one / name).is_file() for name in _CONFIGS)]
    except OSError:
        return []


def _is_cached(model: str) -> bool:
    """Return whether files of a hub model are on this machine."""
    from huggingface_hub import constants

    return (Path(constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}" / "snapshots").is_dir()


def hub_options(
    model: str, revision: str | None = None, subfolder: str | None = None, files: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the options with which a hub model is loaded: files of this machine only, if it has all of them.

    Files of this machine are used as they are, without a request; `hf download` renews them. If the hub is out of
    reach, one request tells, where loading would try for more than a minute.

    Args:
        model: The name on the hub.
        revision: Branch, tag or commit.
        subfolder: Folder of the model within it.
        files: The files that loading needs; by default those of a model with its weights and a tokenizer.

    Raises:
        ModelError: The hub cannot be reached, and the model is not in its cache.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    if _all_cached(model, revision, subfolder, files):
        return {"local_files_only": True}
    try:
        HfApi().model_info(model, timeout=_HUB_SECONDS)
    except HfHubHTTPError:
        pass  # loading it says why, at once
    except Exception as error:  # of whatever library makes the connection
        if _is_cached(model):
            return {"local_files_only": True}
        raise ModelError(
            f"{model}: no such folder, and loading it from the hub failed: it cannot be reached "
            f"({exception_text(error)}). Check the name and the network (HF_HUB_OFFLINE?)."
        ) from error
    return {}


def _all_cached(model: str, revision: str | None, subfolder: str | None, files: Sequence[str]) -> bool:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(model, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return False
    folder = cached / (subfolder or "")
    if files:
        return all((folder / name).is_file() for name in files)
    try:
        shards = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
    except (OSError, ValueError, LookupError, AttributeError):
        shards = ["model.safetensors"]
    tokenizer = any((path / name).is_file() for path in (folder, cached) for name in TOKENIZER_FILES)
    return tokenizer and all((folder / str(name)).is_file() for name in ("config.json", *shards))


def read_config(model: str | Path, folder: Path = Path(), subfolder: str | None = None) -> dict[str, Any]:
    """Return the keys of a model's config.json, none if it is not on this machine or cannot be read.

    Args:
        model: A folder, a hub name, or a model that ships.
        folder: Base for relative paths.
        subfolder: Folder of the model within `model`.
    """
    try:
        path = model_folder(model, folder)
        config = path and json.loads((path / (subfolder or "") / "config.json").read_bytes())
    except (ModelError, OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def has_encoder(model: str | Path, folder: Path = Path(), subfolder: str | None = None) -> bool | None:
    """Return whether a model has an encoder, or None if its config is not on this machine or does not tell.

    Args:
        model: A folder, a hub name, or a model that ships.
        folder: Base for relative paths.
        subfolder: Folder of the model within `model`.
    """
    config = read_config(model, folder, subfolder)
    encoder_decoder, classes = config.get("is_encoder_decoder"), config.get("architectures")
    if isinstance(encoder_decoder, bool):
        return encoder_decoder
    # transformers omits the key for decoder-only models, but a handwritten config may omit it for any model.
    if isinstance(classes, list) and classes and all(str(c).endswith(_DECODER_ONLY_SUFFIXES) for c in classes):
        return False
    return None
