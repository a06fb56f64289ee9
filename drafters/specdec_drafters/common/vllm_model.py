"""Draft models in folders that vLLM loads. Importing this imports no torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from specdec_core.interface import ConfigError, ModelSettings
from specdec_core.models import model_files

_SUFFIXES = (".json", ".safetensors", ".model", ".txt", ".jinja", ".tiktoken")
"""Suffixes of the files of a model and its tokenizer."""


def copy_model(config: ModelSettings, folder: Path, drafter: str) -> None:
    """Copy the files of a draft model and its tokenizer, those of the hub included.

    Args:
        config: The model.
        folder: An empty folder.
        drafter: Name of the drafter, for error messages.

    Raises:
        ConfigError: vLLM cannot run the model with these settings.
        ModelError: It does not exist.
    """
    for name in ("adapter", "quantization_config"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"drafter {drafter!r}: {name} changes the weights when the model is loaded, and vLLM would load "
                "them without it. Save the changed model with save_pretrained(), and name that folder."
            )
    source = model_files(config.model, revision=config.revision) / (config.subfolder or "")
    if not (source / "config.json").is_file():
        raise ConfigError(f"drafter {drafter!r}: {source} has no config.json; name the folder of a model.")
    keys = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if keys.get("is_encoder_decoder"):
        raise ConfigError(
            f"drafter {drafter!r}: {config.model} has an encoder, and vLLM runs decoder-only draft models. Serve "
            "it with --to transformers."
        )
    for file in source.iterdir():
        if file.is_file() and file.suffix in _SUFFIXES:
            shutil.copyfile(file, folder / file.name)
