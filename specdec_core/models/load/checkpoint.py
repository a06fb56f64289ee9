"""Requirements of a checkpoint: safetensors only, with every weight of the model.

transformers gives weights that a checkpoint lacks random values and logs a table. It also loads what an index of
safetensors names, even if that is a pickle.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, cached_file
from transformers.utils import logging as hf_logging

from specdec_core.interface.errors import ModelError

_INDEX = ".safetensors.index.json"
_SHOWN = 4
"""Names listed in an error message; the others are counted."""


def check_weight_files(model: str, location: str, config: Any, options: Mapping[str, Any]) -> None:
    """Reject weight files that are not safetensors, before they are read.

    Args:
        model: The model as the user named it.
        location: Its folder or hub name.
        config: Its config.
        options: `revision`, `subfolder` and the like, as `from_pretrained` takes them.

    Raises:
        ModelError: The message names the file.
        Exception: The index cannot be read.
    """
    named = getattr(config, "transformers_weights", None)
    files = [] if named is None else [str(named)]
    index = SAFE_WEIGHTS_INDEX_NAME if named is None else str(named)
    path = find_file(location, index, options) if index.endswith(_INDEX) else None
    if path is not None:
        files += map(str, json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    for file in files:
        if not file.endswith((".safetensors", _INDEX)):
            raise ModelError(
                f"{model}: {index if path else 'config.json'} names the weight file {file!r}. Weights are read "
                "from safetensors only, since a pickle can run code: save the model again with save_pretrained()."
            )


def find_file(location: str, name: str, options: Mapping[str, Any]) -> Path | None:
    """Return a small file of a model, after downloading it if it is on the hub, or None if it does not exist.

    Raises:
        OSError: The hub cannot be reached.
    """
    source = {key: options[key] for key in ("revision", "subfolder", "local_files_only") if key in options}
    path = cached_file(location, name, **source, _raise_exceptions_for_missing_entries=False)
    return None if path is None else Path(path)


def with_weights_of(target: Any, model: Any, info: Mapping[str, Collection[Any]]) -> tuple[Any, Any]:
    """Return a draft model with the weights that its folder leaves to the target, and how it was loaded.

    A draft model that was made of the target's encoder or embeddings need not hold them: `modules_of_target` in
    its config.json names these modules. Weights of the same dtype, on the same device, are not copied.

    Args:
        target: The target, a model of transformers.
        model: The draft model, with any values where its checkpoint has none.
        info: How it was loaded; see `check_complete`.
    """
    weights, others = model.state_dict(), target.state_dict()
    for name in info["missing_keys"]:
        if name.startswith(_left_to_target(model.config)):
            own, other = weights.pop(name), others.get(name)
            # Quantized weights are of other types. If none is left here, it is missing in the second report.
            if type(other) is Tensor and other.is_floating_point() and not other.is_meta:
                weights[name] = other.to(own)
    # A second load: only with all weights does transformers know which of them are tied.
    given = {"config": model.config, "dtype": model.dtype, "ignore_mismatched_sizes": True}
    complete, info = type(model).from_pretrained(None, state_dict=weights, output_loading_info=True, **given)
    complete.generation_config = model.generation_config
    return complete, info


def _left_to_target(config: Any) -> tuple[str, ...]:
    return tuple(f"{module}." for module in getattr(config, "modules_of_target", ()))


def check_complete(model: str, info: Mapping[str, Collection[Any]], config: Any = None) -> None:
    """Reject a checkpoint without weights that the model has; they would be random.

    Unexpected weights are harmless if none is missing, such as the vision part of a larger model. They are
    mentioned here because a missing weight is often there under another name.

    Args:
        model: The model as the user named it.
        info: The second result of `from_pretrained(..., output_loading_info=True)`. Tied weights, and what a
            family computes by itself, are not among its missing keys.
        config: The model's config, which may leave weights to a target.

    Raises:
        ModelError: Weights are missing or have another shape; the first ones are named.
    """
    missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    mismatched = [
        f"{name} (stored {list(stored)}, by the config {list(needed)})"
        for name, stored, needed in sorted(info["mismatched_keys"])
    ]
    found = [
        f"{len(names)} {what}: {listed(names)}"
        for names, what in (
            (missing, "missing"),
            (mismatched, "of another shape"),
            (unexpected if missing else [], "unexpected"),
        )
        if names
    ]
    if missing or mismatched:
        advice = (
            "If the download or the copy is incomplete, repeat it; else use the config.json that was saved with "
            "these weights."
        )
        if any(name.startswith(_left_to_target(config)) for name in missing):
            advice = (
                f"By config.json, those of {', '.join(config.modules_of_target)} are the target's "
                "(`modules_of_target`): use it as a draft model of the target that it was made for, which must "
                "not be quantized."
            )
        raise ModelError(
            f"{model}: the weights do not fit the config ({'; '.join(found)}). Weights that are not loaded would "
            f"be random. {advice}"
        )


def listed(names: Collection[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = list(names)[:_SHOWN]
    return ", ".join(shown) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Hide the progress bars that transformers shows for each model it loads or saves."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Hide what transformers logs about weights where `check_complete` says it, or where it is wrong.

    transformers reads every T5 config as tied, including T5 1.1, which is not. It then loads both weights
    correctly, but recommends a setting that the config already has.
    """

    def keep(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        tied = "NOT tie" in text or "both are absent" in text
        report = "LOAD REPORT" in text and "CONVERSION" not in text
        return not tied and not (report and ("MISSING" in text or "MISMATCH" in text))

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
