"""What `specdec export --to vllm` writes: a module, or a folder for what vLLM runs itself. Imports no torch."""

import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, cast

from specdec_core.interface import DrafterConfig, PluginConfig
from specdec_core.interface.errors import ConfigError, exception_text
from specdec_core.interface.files import check_output, write_text_file, writing_folder
from specdec_core.registry.nesting import dotted
from specdec_core.registry.registry import Registry
from specdec_core.registry.requirements import beyond_token_ids
from specdec_core.serving.generated import check_module, module_source

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
_GAMMA = "num_speculative_tokens"
DEFAULT_GAMMA = 4
"""Tokens of a draft where neither the user nor the drafter names a number."""


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


@dataclass(frozen=True)
class Export:
    """A drafter for vLLM.

    Attributes:
        path: What was written; None where vLLM reads all from `model`.
        model: What vLLM loads, in words if that is the target's own checkpoint.
        command: Serves a model with it.
        gamma: `num_speculative_tokens` in that command.
        reason: Where gamma comes from.
    """

    path: Path | None
    model: str
    command: str
    gamma: int
    reason: str


def export(
    registry: Registry,
    folder: Path,
    given: str | Mapping[str, Any],
    config: DrafterConfig,
    gamma: int | None = None,
    *,
    overwrite: bool = False,
    target: str = "MODEL",
) -> Export:
    """Write a drafter for vLLM: what vLLM runs itself, or the module of a custom proposer, which is loaded.

    Args:
        registry: The plugins.
        folder: Where to.
        given: The drafter as in a study.
        config: The same, validated.
        gamma: The number of tokens of a draft; None for the one that the drafter was made for, or the default.
        overwrite: Whether to replace what an earlier export wrote.
        target: The model in the command.

    Raises:
        ConfigError: vLLM cannot draft with it, or something is in the way.
        ModelError: The drafter's model does not exist, or is incomplete.
        PluginError: The drafter cannot be loaded.
    """
    name = cast("Any", config).name
    if config.vllm_method is None:
        check_exportable(registry, config)
        path: Path | None = folder / f"{module_name(name)}.py"
        keys: dict[str, Any] = {"method": "custom_class", "model": f"{module_name(name)}.{_CLASS}"}
    else:
        check_output(folder, overwrite, folder_with="config.json")
        with writing_folder(folder) as temporary:
            own = config.export_vllm(temporary)
            path = folder if any(temporary.iterdir()) else None
        if path is None:
            folder.rmdir()
        keys = {"method": config.vllm_method, "model": str(folder), **own}
    made_for = keys.pop(_GAMMA, None)
    tokens = gamma or made_for or DEFAULT_GAMMA
    keys = {key: value for key, value in keys.items() if value is not None} | {_GAMMA: tokens}
    command = f"vllm serve {shlex.quote(target)} --speculative-config {shlex.quote(json.dumps(keys))}"
    if path is not None and config.vllm_method is None:
        command = f"PYTHONPATH={shlex.quote(str(folder))} {command}"
        write_proposer(path, given, command, overwrite)
        check_loads(path, registry, name)
    reason = "as given" if gamma else "the default"
    if made_for is not None:
        reason = "what the drafter was made for" if made_for == tokens else f"it was made for {made_for}"
    return Export(path, keys.get("model", "the target's checkpoint"), command, tokens, reason)


def write_proposer(path: Path, given: str | Mapping[str, Any], command: str, overwrite: bool) -> None:
    """Write the module of a drafter.

    Args:
        path: Where to.
        given: The drafter as in a study.
        command: The command that serves a model with it.
        overwrite: Whether to replace one that is there.

    Raises:
        ConfigError: There is another one already, or it cannot be written.
    """
    values = {"command": command, "settings": given, "folder": str(Path.cwd())}
    source = module_source(_MODULE, values)
    check_module(path, source, overwrite)
    write_text_file(path, source)


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
