"""The folder that `specdec export --to transformers` writes. Importing this imports no torch."""

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_core.interface.errors import ConfigError, ModelError
from specdec_core.interface.files import write_text_file
from specdec_core.models.load.resolve import model_files
from specdec_core.serving.generated import check_module, module_source

_GENERATE = '''\
"""Speculative decoding, written by `specdec export --to transformers`.

transformers puts `generate` in the place of `model.generate` when it loads the model in the folder above.
`COMMAND` serves that model.
"""

from specdec_core.serving.transformers import ServedGenerate

COMMAND = $command

generate = ServedGenerate(
    drafter=$drafter,
    gamma=$gamma,
    folder=$folder,  # base for relative paths in the settings
)
'''
_CUSTOM = "custom_generate"


def write_folder(folder: Path, model: str | None, given: Mapping[str, Any], overwrite: bool) -> Path:
    """Write a model's folder with a function `generate`; return the path of the function's file.

    Args:
        folder: The folder. If it holds a model already, `model` may be None.
        model: The model whose files are linked there: a folder, a hub name or a built-in model.
        given: `drafter` and `gamma` as in a study.
        overwrite: Whether to replace another `generate`, and links to another model. Files stay in any case.

    Raises:
        ConfigError: The model is missing, another `generate` or model is there, or nothing can be written.
        ModelError: The model does not exist.
    """
    path = folder / _CUSTOM / "generate.py"
    values = {"command": serve_command(folder), "folder": str(Path.cwd()), **given}
    source = module_source(_GENERATE, values)
    check_module(path, source, overwrite)
    if model is not None:
        _link(_files_of(model), folder, overwrite)
    elif not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} does not hold a model (config.json is missing); --model names the one to serve, whose "
            "files are then linked there."
        )
    write_text_file(path, source)
    return path


def serve_command(folder: Path) -> str:
    """Return the command that serves a folder."""
    return f"transformers serve {shlex.quote(str(folder))} --trust-remote-code"


def _files_of(model: str) -> Path:
    """Return the folder with a model's files."""
    found = model_files(model)
    if not (found / "config.json").is_file():
        raise ModelError(f"{model}: the folder has no config.json. Pass a folder written by save_pretrained().")
    return found


def _link(source: Path, folder: Path, overwrite: bool) -> None:
    """Link a model's files into a folder, or copy them where the system has no links. Other files there stay."""
    found = (file for file in source.iterdir() if file.name[0] != "." and file.name != _CUSTOM)
    files = {file.name: file.resolve() for file in found}
    there = list(folder.iterdir()) if folder.is_dir() else []
    wrong = [file for file in there if file.resolve() != files.get(file.name)]
    for file in wrong:
        if file.name in files and not file.is_symlink():
            raise ConfigError(f"{file} is not a link to the model and stays; give another folder, or no --model.")
        if file.is_symlink() and not overwrite:
            raise ConfigError(f"{file} links to another model; --overwrite replaces it, or give another folder.")
    for file in wrong:
        if file.is_symlink():
            file.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        link = folder / name
        if not link.exists():
            try:
                link.symlink_to(file, target_is_directory=file.is_dir())
            except OSError:
                (shutil.copytree if file.is_dir() else shutil.copy2)(file, link)
