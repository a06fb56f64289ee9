"""The folder that `specdec export --to vllm` writes for a drafter that vLLM runs itself. Imports no torch."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_core.interface.files import check_output, writing_folder

if TYPE_CHECKING:
    from specdec_core.interface import DrafterConfig


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
