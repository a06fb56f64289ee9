"""Locating a model's files and reading its tokenizer, with one set of error messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from transformers import AutoTokenizer

from specdec_core.interface.errors import ModelError, SpecdecError
from specdec_core.models.load.adapter import refuse_adapter_folder
from specdec_core.models.load.resolve import TOKENIZER_FILES, hub_options, model_folder


def locate(
    model: str,
    folder: Path,
    subfolder: str | None = None,
    revision: str | None = None,
    *,
    trust_remote_code: bool = False,
) -> tuple[str, dict[str, Any]]:
    """Return the arguments for `from_pretrained`: an absolute folder or a hub name, and the options for it."""
    # Always given: without it, transformers asks the user.
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if revision is not None:
        options["revision"] = revision
    location = model_folder(model, folder)
    if location is None:
        options |= hub_options(model, revision, subfolder)
        return model, options if subfolder is None else {**options, "subfolder": subfolder}
    path = location / (subfolder or "")
    refuse_adapter_folder(model, path)
    if not (path / "config.json").is_file():
        within = f" {subfolder!r}" if subfolder else ""
        raise ModelError(
            f"{model}: the folder{within} has no config.json. Pass a folder written by save_pretrained(), with "
            f"config.json, model.safetensors and the tokenizer's files.{_near(location)}"
        )
    return str(path), options


def _near(location: Path) -> str:
    """Return a hint for a folder without a config: the folders inside that have one."""
    if not location.is_dir():
        return ""
    models = sorted(str(each.parent.relative_to(location)) for each in location.glob("*/config.json"))
    return f" These subfolders have one: {', '.join(models)}; set `subfolder`." if models else ""


@contextmanager
def reading_model(model: str, location: str) -> Iterator[None]:
    """Turn what transformers raises about a model's files into a ModelError. A broken one may raise anything."""
    try:
        yield
    except SpecdecError:
        raise
    except Exception as error:
        raise ModelError(_loading_failed(model, location, error)) from error


def _loading_failed(model: str, location: str, error: Exception) -> str:
    reason = _first_sentence(error)
    if "file named model.safetensors" in reason:
        return (
            f"{model}: there is no model.safetensors. A pickle such as pytorch_model.bin can run code and is not "
            "read. Convert one that you trust with from_pretrained() and save_pretrained() of transformers."
        )
    if isinstance(error, ImportError):
        return f"{model}: it needs a package that cannot be imported: {reason}"
    if Path(location).is_dir():
        advice = "Pass a folder written by save_pretrained(); if a file is incomplete, copy the folder again."
        # A ValueError is about a setting or the config, the others are about files.
        return f"{model}: the folder cannot be loaded: {reason}" + f" {advice}" * (
            not isinstance(error, ValueError)
        )
    return (
        f"{model}: no such folder, and loading it from the hub failed: {reason} "
        "Check the name, the network (HF_HUB_OFFLINE?) and, for gated models, that you are logged in."
    )


def _first_sentence(error: Exception) -> str:
    """Return the first line of a message, and the next one if the first announces it."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def read_tokenizer(location: str, options: Mapping[str, Any], subfolder: str | None = None) -> Any:
    """Return a model's tokenizer, or None. That of a model in a subfolder may be in the folder around it."""
    if Path(location).is_dir():
        around = [] if subfolder is None else [Path(location).parents[len(Path(subfolder).parts) - 1]]
        for folder in (Path(location), *around):
            known = any((folder / name).is_file() for name in TOKENIZER_FILES)
            if known or (folder / "tokenizer_config.json").is_file():
                tokenizer = _load_tokenizer(str(folder), options)
                files = tokenizer.vocab_files_names.values()  # ByT5 has none; without its own, others are empty
                if known or not files or any((folder / name).is_file() for name in files):
                    return tokenizer
        return None  # a model without a tokenizer decodes token ids
    try:
        return _load_tokenizer(location, options)
    except ModelError:
        if subfolder is None:
            raise
        return _load_tokenizer(location, {key: value for key, value in options.items() if key != "subfolder"})


def _load_tokenizer(location: str, options: Mapping[str, Any]) -> Any:
    try:
        return AutoTokenizer.from_pretrained(location, **options)
    except Exception as error:  # a broken file may raise anything
        reason = shorten(str(error) or type(error).__name__, 400)
        raise ModelError(f"{location}: the tokenizer cannot be loaded: {reason}") from error
