"""The target in a record: the tokenizer, and the embeddings where it holds hidden states."""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from specdec_core.interface import ConfigError, ModelError, TargetInfo
from specdec_core.interface.files import writing_folder
from specdec_core.models import LoadedModel, load_vocabulary
from specdec_core.models.device import parse_device
from specdec_core.models.load.loading import load_as_set
from specdec_core.models.load.locate import read_tokenizer
from specdec_core.offline.record.format import Record
from specdec_core.offline.record.store import FEATURES, TOKENIZER, damaged
from specdec_core.registry.shipped import is_shipped

_INPUT, _OUTPUT = "input_embeddings", "output_embeddings"


class RecordedFeatures:
    """The embeddings of a target that was recorded with its hidden states; see `TargetFeatures`.

    Args:
        path: The file with the embeddings.
        device: Where they go.

    Raises:
        ConfigError: The file cannot be read.
    """

    num_layers = None

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path, self._device = path, device
        try:
            with safe_open(path, framework="pt") as file:
                metadata: dict[str, str] = file.metadata() or {}
                self._fingerprint = metadata.get("fingerprint")
                self._tied = _INPUT not in file.keys()  # noqa: SIM118  (no mapping)
                self.hidden_size = int(file.get_slice(_OUTPUT).get_shape()[1])
        except (OSError, SafetensorError) as error:
            raise damaged(path, str(error)) from error

    @cached_property
    def output_embeddings(self) -> Tensor:
        """Weights `[V, D]` of the language-model head."""
        return self._read(_OUTPUT)

    @cached_property
    def input_embeddings(self) -> Tensor:
        """Weights `[V', E]` of the (decoder's) input embedding."""
        # Tied embeddings are stored once.
        return self.output_embeddings if self._tied else self._read(_INPUT)

    def fingerprint(self) -> str:
        """Return the digest of the target's weights.

        Raises:
            ModelError: They could not be read when the target was recorded.
        """
        if self._fingerprint is None:
            raise ModelError(
                f"{self._path}: the weights of this target could not be identified when it was recorded."
            )
        return self._fingerprint

    def _read(self, name: str) -> Tensor:
        with safe_open(self._path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor.to(self._device)


def target_info(record: Record, folder: Path = Path(), device: str = "auto") -> TargetInfo:
    """Return what drafters see of the target of a record; the target is not loaded.

    Args:
        record: The record.
        folder: Base for relative paths in plugin settings.
        device: Where drafters compute: `auto` is a GPU where there is one.

    Raises:
        ConfigError: The tokenizer is not the one that was recorded.
        ModelError: The tokenizer cannot be read, or the device does not exist.
    """
    header, where, embeddings = record.header, parse_device(device), record.path / FEATURES
    return TargetInfo(
        vocab_size=header.vocab_size,
        eos_ids=header.eos_ids,
        device=where,
        tokenizer=recorded_tokenizer(record),
        encoder_decoder=header.start_id is not None,
        folder=folder,
        features=RecordedFeatures(embeddings, where) if embeddings.exists() else None,
    )


def load_recorded(record: Record, folder: Path = Path()) -> LoadedModel:
    """Load the target of a record.

    Args:
        record: The record.
        folder: Base for a relative path of the target.

    Raises:
        ConfigError: It has other weights now, or is on the hub and the user does not name it.
        ModelError: It cannot be loaded.
    """
    record.check_named(folder)
    header = record.header
    target = load_as_set(header.target, folder)
    if header.fingerprint not in (None, own := fingerprint_weights(target)):
        raise ConfigError(
            f"{header.target.model} is not the target that was recorded in {record.path}: the fingerprint of its "
            f"weights is {own}, and that of the record is {header.fingerprint}. Record it anew."
        )
    return target


def fingerprint_weights(target: LoadedModel) -> str | None:
    """Return the digest of the target's weights; None if they cannot be read."""
    try:
        return None if target.features is None else target.features.fingerprint()
    except ModelError:
        return None


def recorded_tokenizer(record: Record) -> Any:
    """Return the tokenizer of a record's target, or None without one.

    That of a target that ships with a package is not in the record: it comes with the target.

    Raises:
        ConfigError: It is not the one that was recorded.
        ModelError: It cannot be read.
    """
    header = record.header
    if header.tokenizer is None:
        return None
    source = header.target.model if is_shipped(header.target.model) else str(record.path / TOKENIZER)
    if is_shipped(source):
        tokenizer = load_vocabulary(source)[0]
    elif not Path(source).is_dir():
        raise ConfigError(f"{record.path} has lost its folder `{TOKENIZER}`. Copy the record again.")
    else:
        tokenizer = read_tokenizer(source, {"local_files_only": True, "trust_remote_code": False})
    if tokenizer is None or fingerprint_tokenizer(tokenizer) != header.tokenizer:
        raise ConfigError(
            f"{record.path}: the tokenizer in {source} is not the one of the recorded texts; copy the record "
            "again, or record the target anew."
        )
    return tokenizer


def fingerprint_tokenizer(tokenizer: Any) -> str:
    """Return a digest of what a tokenizer makes of texts: its vocabulary and its special tokens.

    It is the same for a tokenizer that was saved and loaded again.
    """
    parts = [sorted(tokenizer.get_vocab().items()), sorted(map(str, tokenizer.all_special_tokens))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def save_tokenizer(path: Path, model: str, tokenizer: Any) -> None:
    """Write the tokenizer of a model into the folder of a record, unless it is there, or ships with the model.

    Raises:
        ConfigError: It cannot be written.
    """
    if tokenizer is None or is_shipped(model) or (path / TOKENIZER).is_dir():
        return
    with writing_folder(path / TOKENIZER) as temporary:
        tokenizer.save_pretrained(temporary)


def stored_features(target: LoadedModel, fingerprint: str | None) -> bytes:
    """Return the file of a record with the embeddings of a target, in the number format of its weights."""
    features = target.features
    assert features is not None, "a target without an output embedding has no hidden states to record"
    output, read = features.output_embeddings, features.input_embeddings
    tied = output.shape == read.shape and output.data_ptr() == read.data_ptr()
    stored = {_OUTPUT: output} if tied else {_OUTPUT: output, _INPUT: read}
    metadata = {} if fingerprint is None else {"fingerprint": fingerprint}
    return save({name: weight.cpu().contiguous() for name, weight in stored.items()}, metadata)
