"""Files of trained weights: safetensors, with a header that describes them and their target."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specdec_core.interface import ModelError, TargetFeatures, TargetInfo
from specdec_core.interface.files import input_path, writing_file
from specdec_core.models import LoadedModel
from specdec_core.registry import shipped_file


class WeightsCard(BaseModel):
    """The header of a file of weights.

    Attributes:
        version: Version of the format.
        target: The target's name at training time.
        fingerprint: The target's `TargetFeatures.fingerprint()`.
        facts: Training settings and results.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    target: str
    fingerprint: str
    facts: Mapping[str, str | int | float] = {}


C = TypeVar("C", bound=WeightsCard)


def target_features(target: TargetInfo | LoadedModel, drafter: str) -> TargetFeatures:
    """Return the target's weights.

    Raises:
        ModelError: Its hidden states cannot be read.
    """
    if target.features is None:
        raise ModelError(
            f"drafter {drafter!r}: this target has no output embedding, so its hidden states cannot be read. "
            "Choose another drafter."
        )
    return target.features


def require_sizes(
    sizes: Mapping[str, tuple[int | None, int]], weights: str | Path, drafter: str, advice: str
) -> None:
    """Reject weights that are for a target of other sizes.

    Args:
        sizes: What has a size, with that of the weights and that of the target.
        weights: Where the weights are from, for the message.
        drafter: The name of the drafter, for the message.
        advice: The end of the message.

    Raises:
        ModelError: A size differs.
    """
    for what, (theirs, ours) in sizes.items():
        if theirs != ours:
            raise ModelError(
                f"drafter {drafter!r}: {weights} is for a target with {what} of size {theirs}; this one's is "
                f"{ours}. {advice}"
            )


def trained_for(fingerprint: str, own: str | None) -> bool:
    """Whether weights with the fingerprint of one target are for another: the same, or a quantized copy of it."""
    return own is not None and fingerprint.partition("-int")[0] == own.partition("-int")[0]


@dataclass(frozen=True)
class WeightsFormat(Generic[C]):
    """A kind of files of weights.

    Attributes:
        what: What a file holds, for messages.
        name: The name of the file in a folder.
        key: The key of the header in the file's metadata.
        card: The schema of the header.
        how_to_train: The advice that ends messages.
    """

    what: str
    name: str
    key: str
    card: type[C]
    how_to_train: str

    def find(self, model: str, folder: Path) -> Path:
        """Return the file that a `model` setting refers to.

        Args:
            model: A file, a folder that holds a file with this name, or one that ships, such as `builtin:heads`.
            folder: Base for relative paths.

        Raises:
            ModelError: No installed collection has these weights, or the folder has no such file.
        """
        if (shipped := shipped_file(model, self.what, self.name, folder)) is not None:
            return shipped
        path = input_path(model, folder, ModelError)
        if not path.is_dir():
            return path
        if not (path / self.name).is_file():
            raise ModelError(f"{path}: the folder has no {self.name}. {self.how_to_train}")
        return path / self.name

    def write(self, path: Path, weights: Mapping[str, Tensor], card: C, dtype: torch.dtype) -> None:
        """Write a file, atomically.

        Args:
            path: The file; an existing one is replaced.
            weights: The weights, by name.
            card: The header.
            dtype: Data type of the stored weights.

        Raises:
            ConfigError: The file cannot be written.
            ModelError: A weight has no finite value in `dtype`.
        """
        tensors = {name: weight.detach().to(dtype).contiguous().cpu() for name, weight in weights.items()}
        for name, tensor in tensors.items():
            if not torch.isfinite(tensor).all():
                raise ModelError(f"{path}: the weight {name} has values that are not finite. {self.how_to_train}")
        with writing_file(path) as temporary:
            save_file(tensors, temporary, metadata={self.key: card.model_dump_json()})

    def read(self, path: Path) -> tuple[dict[str, Tensor], C]:
        """Return the weights by name, on the CPU as they are stored, and the header.

        Raises:
            ModelError: The file is missing, truncated, of another kind, or of an unknown version.
        """
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
                header = (file.metadata() or {})[self.key]
            return tensors, self.card.model_validate_json(header)
        except (SafetensorError, OSError, KeyError, ValidationError) as error:
            raise ModelError(f"{path}: no file of this format ({error}). {self.how_to_train}") from error

    def check_target(self, card: C, features: TargetFeatures | None, path: Path, drafter: str) -> None:
        """Reject weights that were trained for another target. Quantized copies of one target share them.

        Args:
            card: Their header.
            features: Those of the target.
            path: The file, for the message.
            drafter: The name of the drafter, for the message.

        Raises:
            ModelError: The fingerprints differ.
        """
        own = None if features is None else features.fingerprint()
        if not trained_for(card.fingerprint, own):
            raise ModelError(
                f"drafter {drafter!r}: {path} was trained for another target, {card.target} (fingerprint "
                f"{card.fingerprint}); this one's is {own}. {self.how_to_train}"
            )
