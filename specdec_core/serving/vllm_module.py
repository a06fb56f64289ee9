"""What `specdec export --to vllm` writes: a module, or a folder for what vLLM runs itself. Imports no torch."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_core.interface.errors import ConfigError, exception_text
from specdec_core.interface.files import check_output, writing_folder
from specdec_core.registry.nesting import dotted
from specdec_core.registry.requirements import beyond_token_ids
from specdec_core.serving.generated import check_module, module_source, write_module

if TYPE_CHECKING:
    from specdec_core.interface import DrafterConfig, PluginConfig
    from specdec_core.registry.registry import Registry

_MODULE = '''\
"""A drafter for vLLM, written by `specdec export --to vllm`.

The folder of this file must be on PYTHONPATH where vLLM runs, and specdec-core installed there. `COMMAND` serves a
model with the drafter.
"""

from specdec_core.serving.vllm import VllmProposer

COMMAND = $command


class Proposer(VllmProposer):
    """Drafts in vLLM's process. The settings are those of a study and may be edited."""

    settings = $settings
    folder = $folder  # base for relative paths in the settings
'''
_CLASS = "Proposer"


def check_exportable(registry: Registry, config: PluginConfig) -> None:
    """Check that a drafter needs no more than vLLM passes to custom proposers.

    Raises:
        ConfigError: It does. The message says what, and which drafters do not.
    """
    for keys, name, needs in beyond_token_ids(config):
        can = [name for name in registry.names("drafter") if registry.drafter_config(name).token_ids_only]
        where = f" ({dotted(keys)})" if keys else ""
        own = [name for name in registry.names("drafter") if registry.drafter_config(name).vllm_method]
        raise ConfigError(
            f"drafter {name!r}{where} cannot draft in vLLM: it {needs}, and vLLM passes token ids alone to custom "
            f"proposers. Drafters that need no more: {', '.join(can)}. vLLM itself runs, if they are not nested: "
            f"{', '.join(own)}."
        )


def write_proposer(folder: Path, given: str | Mapping[str, Any], name: str, gamma: int, overwrite: bool) -> Path:
    """Write the module of a drafter; return its path.

    Args:
        folder: Where to.
        given: The drafter as in a study.
        name: Its name.
        gamma: The number of tokens in the command that the module shows.
        overwrite: Whether to replace one that is there.

    Raises:
        ConfigError: There is another one already, or it cannot be written.
    """
    path = folder / f"{module_name(name)}.py"
    values = {"command": serve_command(path, gamma), "settings": given, "folder": str(Path.cwd())}
    source = module_source(_MODULE, values)
    check_module(path, source, overwrite)
    write_module(path, source)
    return path


def module_name(name: str) -> str:
    """Return the name of the module of a drafter: `exported_prompt_copy` for `prompt-copy`.

    The package of a plugin is often called `specdec_NAME`, and a module of that name would hide it in vLLM.
    """
    return re.sub(r"\W", "_", f"exported_{name}")


def check_loads(path: Path, registry: Registry, name: str) -> None:
    """Load a written module and its drafter, as vLLM will with the module's folder first on its path.

    Raises:
        ConfigError: The module cannot be loaded, or its folder hides a module that is installed.
        PluginError: The drafter cannot be loaded.
    """
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    try:
        spec.loader.exec_module(module_from_spec(spec))
    except Exception as error:
        raise ConfigError(f"{path}: vLLM could not load it: {exception_text(error)}") from error
    registry.factory("drafter", name)
    for needed in sorted({module.partition(".")[0] for module in sys.modules}):
        hides = PathFinder.find_spec(needed, [str(path.parent)])
        if hides is not None and hides.origin != getattr(sys.modules[needed].__spec__, "origin", None):
            raise ConfigError(f"{path.parent} would hide the installed module {needed!r}; give another folder.")


def serve_command(path: Path, gamma: int) -> str:
    """Return the command that serves a model with a module."""
    config = {"method": "custom_class", "model": f"{path.stem}.{_CLASS}", "num_speculative_tokens": gamma}
    folder, given = shlex.quote(str(path.parent)), shlex.quote(json.dumps(config))
    return f"PYTHONPATH={folder} vllm serve MODEL --speculative-config {given}"


def write_folder(folder: Path, config: DrafterConfig, gamma: int, overwrite: bool) -> str:
    """Write what vLLM loads; return the command that serves a model with it.

    Args:
        folder: Where to.
        config: The drafter's settings, with a `vllm_method`.
        gamma: The number of tokens of a draft.
        overwrite: Whether to replace a folder that an earlier export wrote.

    Raises:
        ConfigError: vLLM cannot load the drafter, or the folder cannot be written.
        ModelError: The drafter's model does not exist, or is incomplete.
    """
    check_output(folder, overwrite, folder_with="config.json")
    with writing_folder(folder) as temporary:
        more = config.export_vllm(temporary)
    keys = {"method": config.vllm_method, "model": str(folder), "num_speculative_tokens": gamma, **more}
    return f"vllm serve MODEL --speculative-config {shlex.quote(json.dumps(keys))}"
