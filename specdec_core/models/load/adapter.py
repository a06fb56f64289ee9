"""PEFT adapters: load one for a model that is in memory."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from specdec_core.interface.errors import ModelError, SpecdecError
from specdec_core.models.load.checkpoint import find_file, listed
from specdec_core.models.load.resolve import downloaded, hub_options, model_folder
from specdec_core.models.packages import require

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Adapter:
    """An adapter that can be loaded.

    Attributes:
        name: As the user named it.
        folder: Where its config and weights are.
        config: Its `PeftConfig`.
    """

    name: str
    folder: Path
    config: Any


def read_adapter(name: str, folder: Path = Path()) -> Adapter:
    """Find an adapter and read its config, before the model is loaded.

    Args:
        name: A folder with `adapter_config.json` and `adapter_model.safetensors`, or a hub name.
        folder: Base for relative paths.

    Raises:
        ModelError: peft is missing, the adapter cannot be read, or it acts on more than the weights.
    """
    require("peft", "an adapter", "specdec-core[peft]")
    from peft import PeftConfig

    path = adapter_folder(name, folder)
    with _loading(name):
        config = PeftConfig.from_pretrained(str(path))
    _check_kind(name, config)
    return Adapter(name, path, config)


def without_wrapper(model: Any) -> Any:
    """Return the model in a `PeftModel`, whose layers hold the adapter; another model as it is.

    Raises:
        ModelError: It has an adapter that acts on more than the weights.
    """
    for config in (getattr(model, "peft_config", None) or {}).values():
        _check_kind(type(model).__name__, config)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _check_kind(name: str, config: Any) -> None:
    activated = getattr(config, "alora_invocation_tokens", None)
    if not config.is_prompt_learning and not activated:
        return
    kind = "alora" if activated else str(config.peft_type.value).lower()
    raise ModelError(
        f"{name}: adapters of type {kind} are not supported: they act on tokens or on "
        "the cache, not on the weights, and a cache with draft tokens is rolled back. Use LoRA, or another "
        "adapter of the weights."
    )


def with_adapter(model: Any, adapter: Adapter) -> Any:
    """Return a model with a PEFT adapter.

    The adapter is merged into the weights, so that it costs nothing. Quantized weights cannot hold the sum without
    rounding it; there, the adapter stays beside them.

    Args:
        model: A Hugging Face model. Changed in place.
        adapter: The adapter.

    Raises:
        ModelError: The adapter does not fit the model, or its file lacks weights or has others.
    """
    from peft import PeftModel

    with _loading(adapter.name), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # names that peft still uses and transformers will drop
        warnings.filterwarnings("error", message=".*missing adapter keys")
        adapted = PeftModel.from_pretrained(model, str(adapter.folder), config=adapter.config)
        _check_all_used(adapted, adapter)
        quantized = getattr(model, "hf_quantizer", None) is not None
        return adapted.get_base_model() if quantized else adapted.merge_and_unload()


def _check_all_used(adapted: Any, adapter: Adapter) -> None:
    """Reject a file with more weights than the adapted model took; peft would ignore the others.

    Raises:
        ModelError: The message has some of their names.
    """
    from peft import get_peft_model_state_dict
    from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING

    with safe_open(adapter.folder / _WEIGHTS, framework="pt") as file:
        stored = list(file.keys())
    prefix = PEFT_TYPE_TO_PREFIX_MAPPING.get(adapter.config.peft_type, "")
    known = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    # Numbers, since peft reads names of older versions, too.
    if sum(prefix in name for name in stored) > sum(prefix in name for name in known):
        raise ModelError(
            f"{adapter.name}: this adapter has weights for layers that the model or {_CONFIG} does not name: "
            f"{listed([name for name in stored if name not in known])}. Name the base model that it was trained "
            "for."
        )


@contextmanager
def _loading(adapter: str) -> Iterator[None]:
    """Turn an exception of peft into a ModelError."""
    try:
        yield
    except SpecdecError:
        raise
    except Exception as error:  # a broken file may raise anything
        reason = " ".join(line.strip() for line in str(error).strip().splitlines()[:2])
        raise ModelError(f"{adapter}: this adapter cannot be loaded: {reason}") from error


def adapter_folder(adapter: str, folder: Path = Path()) -> Path:
    """Return the folder of an adapter, after downloading its config and weights if it is on the hub.

    Args:
        adapter: A folder or a hub name.
        folder: Base for relative paths.

    Raises:
        ModelError: The folder does not exist, or it holds no adapter, or no safetensors.
    """
    path, files = model_folder(adapter, folder), (_CONFIG, _WEIGHTS)
    if path is None:
        path = downloaded(adapter, allow_patterns=files, **hub_options(adapter, files=files))
    for name in files:
        if not (path / name).is_file():
            raise ModelError(
                f"{adapter}: this adapter has no {name}. Pass what PeftModel.save_pretrained() wrote; weights are "
                "read from safetensors only."
            )
    return path


def refuse_adapter_on_hub(model: str, options: Mapping[str, Any]) -> None:
    """Reject a hub model that has an adapter, which transformers would apply, even from a pickle.

    Raises:
        ModelError: It has an `adapter_config.json`.
        OSError: The hub cannot be reached.
    """
    found = find_file(model, _CONFIG, options)
    if found is not None:
        refuse_adapter_folder(model, found.parent)


def refuse_adapter_folder(model: str, path: Path) -> None:
    """Reject a folder that is named as a model but holds an adapter, with what to write instead.

    Raises:
        ModelError: The folder has an `adapter_config.json`.
    """
    if not (path / _CONFIG).is_file():
        return
    try:
        base = json.loads((path / _CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    whose = f" ({base})" if base else ""
    raise ModelError(
        f"{model}: this folder holds a PEFT adapter ({_CONFIG}). Set `model` to its base model{whose}, in a "
        "folder without an adapter, and `adapter` to this folder."
    )
