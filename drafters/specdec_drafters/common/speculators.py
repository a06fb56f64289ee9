"""Draft heads in the format of the speculators package: config.json and safetensors weights.

References:
    speculators 0.9: `SpeculatorModelConfig` and `SpeculatorModel.from_pretrained`. The package is not needed.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils import cached_file

from specdec_core.interface import ModelError, TargetInfo
from specdec_core.interface.validated import validated
from specdec_core.models import model_folder
from specdec_core.registry import shipped_file
from specdec_drafters.common.weights_file import trained_for

WEIGHTS = "model.safetensors"
_GIVE = "Give a folder of a draft head, or a name on the hub if that is in reach (HF_HUB_OFFLINE?)."
_NO_PICKLES = (
    "A pickle such as pytorch_model.bin can run code and is not read. Convert one that you trust: "
    'safetensors.torch.save_file(torch.load("pytorch_model.bin", weights_only=True), "model.safetensors")'
)
C = TypeVar("C", bound="SpeculatorConfig")


class Verifier(BaseModel):
    """The target that a head was trained for, as the package names it."""

    name_or_path: str | None = None


class ProposalMethod(BaseModel):
    """How a head was meant to draft."""

    speculative_tokens: int | None = None


class SpeculatorsSection(BaseModel):
    """The key `speculators_config`."""

    verifier: Verifier = Verifier()
    proposal_methods: tuple[ProposalMethod, ...] = ()


class TrainedFor(BaseModel):
    """The key `specdec`, which `specdec train` adds: the target, by its weights."""

    fingerprint: str


class SpeculatorConfig(BaseModel):
    """The keys common to the configs of all types. transformers adds many keys, so that others are ignored."""

    model_config = ConfigDict(extra="ignore")

    speculators_model_type: str
    transformer_layer_config: dict[str, Any]
    speculators_config: SpeculatorsSection | None = None
    specdec: TrainedFor | None = None

    @property
    def verifier(self) -> str | None:
        """The target that the head was trained for, as the config names it."""
        return None if self.speculators_config is None else self.speculators_config.verifier.name_or_path

    @property
    def drafted(self) -> int | None:
        """The length of a draft that the head is meant for, if the config names it."""
        methods = () if self.speculators_config is None else self.speculators_config.proposal_methods
        return next((one.speculative_tokens for one in methods), None)

    def layer(self, model: str, supported: Collection[str], default: str = "qwen3") -> dict[str, Any]:
        """Return the config of the head's layers.

        Args:
            model: Name of the checkpoint, for the error message.
            supported: Architectures that the head may have, by `model_type`.
            default: The architecture if the config names none.

        Raises:
            ModelError: It has another.
        """
        layer = {"model_type": default, **self.transformer_layer_config}
        if layer["model_type"] not in supported:
            raise ModelError(
                f"drafter {self.speculators_model_type!r}: {model} has layers of the model_type "
                f"{layer['model_type']!r}. Supported: {', '.join(supported)}."
            )
        return layer


@dataclass(frozen=True)
class Checkpoint:
    """A draft head as it is stored.

    Attributes:
        model: The name or folder that was asked for.
        config: Its `config.json`.
        tensors: Its weights by name, on the CPU.
    """

    model: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def read_checkpoint(
    model: str, folder: Path, drafter: str, convert: Mapping[str, Callable[[Checkpoint], Checkpoint]] | None = None
) -> Checkpoint:
    """Read a draft head.

    Args:
        model: A folder, a hub name, or a head that ships, such as `builtin:eagle3`.
        folder: Base for relative paths.
        drafter: Name of the drafter, for error messages.
        convert: How heads of other formats are converted, by architecture.

    Raises:
        ModelError: It is not there, or no draft head in this format.
    """
    shipped = shipped_file(model, "draft head", "config.json", folder, fits=_is_no_model)
    found = model_folder(model, folder) if shipped is None else shipped.parent
    config = read_json(checkpoint_file(model, found, "config.json"))
    if not isinstance(config.get("speculators_model_type"), str):
        names = [str(name) for name in config.get("architectures") or ()]
        known = next((name for name in names if convert and name in convert), None)
        if convert and known:
            return convert[known](Checkpoint(model, config, read_weights(model, found)))
        if "medusa" in json.dumps(config).lower():
            raise ModelError(
                f"drafter {drafter!r}: {model} holds Medusa heads, which are not supported. Choose another in "
                "the format of the speculators package."
            )
        kind = ", ".join(names or [str(config.get("model_type"))])
        raise ModelError(
            f"drafter {drafter!r}: {model} is not in the format of the speculators package: its config.json has "
            f"no speculators_model_type (it is a {kind}). Convert it with that package (`speculators convert`), "
            "or choose another checkpoint."
        )
    return Checkpoint(model, config, read_weights(model, found))


def _is_no_model(config: Path) -> bool:
    return not (config.parent / "generation_config.json").exists()


def open_checkpoint(
    kind: type[C],
    model: str,
    target: TargetInfo | None,
    drafter: str,
    types: Sequence[str] = (),
    convert: Mapping[str, Callable[[Checkpoint], Checkpoint]] | None = None,
) -> tuple[Checkpoint, C]:
    """Read a draft head of some type, and check that it was not trained for another target.

    Args:
        kind: The schema of its config.
        model: A folder, a hub name, or a head that ships, such as `builtin:eagle3`.
        target: The target; None if it is not known.
        drafter: Name of the drafter.
        types: Each `speculators_model_type` that it takes; by default that of its name.
        convert: How heads of other formats are converted; see `read_checkpoint`.

    Raises:
        ModelError: It is not there, of another type or for another target, or its config is not valid.
    """
    checkpoint = read_checkpoint(model, Path() if target is None else target.folder, drafter, convert)
    found = checkpoint.config["speculators_model_type"]
    types = types or (drafter,)
    if found not in types:
        raise ModelError(
            f"drafter {drafter!r}: {model} has the speculators_model_type {found!r}. Supported: "
            f"{', '.join(types)}. Choose a checkpoint of that type for this target."
        )
    where = f"drafter {drafter!r}: {model}: config.json"
    config = validated(kind, dict(checkpoint.config), where, ModelError)
    if target is not None:
        _check_fingerprint(config, model, target, drafter)
    return checkpoint, config


def _check_fingerprint(config: SpeculatorConfig, model: str, target: TargetInfo, drafter: str) -> None:
    """Reject a head that `specdec train` made for another target. Heads of others do not say what theirs was.

    Raises:
        ModelError: It was trained for another target.
    """
    if config.specdec is None or target.features is None:
        return
    own = target.features.fingerprint()
    if not trained_for(config.specdec.fingerprint, own):
        raise ModelError(
            f"drafter {drafter!r}: {model} was trained for {config.verifier or 'another target'} (fingerprint "
            f"{config.specdec.fingerprint}); this one's is {own}. Train a head for this one with `specdec train "
            f"{drafter} --target TARGET --output FOLDER`."
        )


def write_checkpoint(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a draft head into an existing folder."""
    text = json.dumps(dict(config), indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})


def checkpoint_file(
    model: str, folder: Path | None, name: str, advice: str = _GIVE, revision: str | None = None
) -> Path:
    """Return the path of a file of a checkpoint; see `_find`.

    Raises:
        ModelError: It is not there, or the hub cannot be reached.
    """
    found = _find(model, folder, name, revision)
    if found is None:
        raise ModelError(f"{model}: there is no {name}. {advice}")
    return found


def _find(model: str, folder: Path | None, name: str, revision: str | None = None) -> Path | None:
    """Return the path of a file of a checkpoint, from the hub if it has no folder; None if there is none."""
    if folder is not None:
        return folder / name if (folder / name).is_file() else None
    try:
        found = cached_file(model, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"{model}: no such folder, and loading {name} from the hub failed: {reason} Check the name "
            "and the network (HF_HUB_OFFLINE?)."
        ) from error
    return None if found is None else Path(found)


def read_json(path: Path) -> dict[str, Any]:
    """Return the keys of a file.

    Raises:
        ModelError: It is not readable, or holds something else.
    """
    try:
        with path.open("rb") as file:
            read = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not readable as JSON ({error}). Copy the checkpoint again.") from error
    if not isinstance(read, dict):
        raise ModelError(f"{path}: expected a mapping, found a {type(read).__name__}.")
    return read


def read_weights(model: str, folder: Path | None) -> dict[str, Tensor]:
    """Return the weights of a checkpoint, on the CPU; those of the hub if it has no folder.

    Raises:
        ModelError: They are not there, not complete, or not in safetensors.
    """
    index = _find(model, folder, f"{WEIGHTS}.index.json")
    files = {"": WEIGHTS} if index is None else read_json(index).get("weight_map")
    if not isinstance(files, dict):
        raise ModelError(f"{index}: weight_map is not a mapping, but {files!r}. Copy the checkpoint again.")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(map(str, files.values()))):
        path = checkpoint_file(model, folder, name, _NO_PICKLES)
        try:
            tensors |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{path}: not a complete safetensors file ({error}). Copy the checkpoint again."
            ) from error
    return tensors
