"""Files of trained weights: safetensors, with a header that describes them and their target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from specdec_core.interface import ModelError, input_path, open_input
from specdec_core.registry import shipped_file

if TYPE_CHECKING:
    from torch import Tensor

    from specdec_core.interface import TargetFeatures


def find_weights(model: str, folder: Path, name: str, what: str, how_to_train: str) -> Path:
    """Return the file that a `model` setting refers to.

    Args:
        model: A file, a folder that holds a file with this name, or one that ships, such as `builtin:heads`.
        folder: Base for relative paths.
        name: The name of the file in a folder.
        what: What the file holds, for messages.
        how_to_train: The advice that ends messages.

    Raises:
        ModelError: No installed collection has these weights, or the folder has no such file.
    """
    if (shipped := shipped_file(model, what, name, folder)) is not None:
        return shipped
    path = input_path(model, folder, ModelError)
    if not path.is_dir():
        return path
    if not (path / name).is_file():
        raise ModelError(f"{path}: the folder has no {name}. {how_to_train}")
    return path / name


def read_weights(path: Path, key: str, how_to_train: str) -> tuple[dict[str, Tensor], str | None]:
    """Read a file.

    Args:
        path: The file.
        key: The key of the header in the file's metadata.
        how_to_train: The advice that ends messages.

    Returns:
        Its tensors by name, on the CPU, and the header; None if it has none.

    Raises:
        ModelError: The file is missing or truncated.
    """
    try:
        with open_input(path), safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
            return tensors, (file.metadata() or {}).get(key)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such file. {how_to_train}") from error
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: not a complete safetensors file ({error}). {how_to_train}") from error


def check_trained_for(
    features: TargetFeatures | None, name: str, fingerprint: str, path: Path, drafter: str, how_to_train: str
) -> None:
    """Refuse weights that were trained for another target.

    Args:
        features: Those of the target.
        name: The name of the target that they were trained for.
        fingerprint: Its `TargetFeatures.fingerprint()`.
        path: The file, for the message.
        drafter: The name of the drafter, for the message.
        how_to_train: The advice that ends the message.

    Raises:
        ModelError: The fingerprints differ.
    """
    own = None if features is None else features.fingerprint()
    if fingerprint != own:
        raise ModelError(
            f"drafter {drafter!r}: {path} was trained for another target, {name} (fingerprint {fingerprint}); "
            f"this one's is {own}. {how_to_train}"
        )
