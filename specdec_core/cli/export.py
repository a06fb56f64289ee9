"""`specdec export`: a drafter in the server that someone already runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from typer import Argument, Option

from specdec_core.cli.common import output_console, validated
from specdec_core.interface.errors import ConfigError
from specdec_core.registry import default_registry
from specdec_core.serving.vllm_module import check_exportable, serve_command, write_module
from specdec_core.study import run_model
from specdec_core.study.config.yaml_source import parse_value

Server: TypeAlias = Literal["vllm"]


def export(
    folder: Annotated[Path, Argument(help="The folder to write into; it is made if need be.", metavar="FOLDER")],
    to: Annotated[Server, Option(help="For which server.")],
    drafter: Annotated[str, Option(help="The drafter: a name, or YAML with its settings.")],
    gamma: Annotated[str, Option(help="Tokens drafted per step: a number.")] = "4",
    overwrite: Annotated[bool, Option("--overwrite", help="Replace what an earlier export wrote.")] = False,
) -> None:
    r"""Export a drafter to another server.

    With --to vllm: a Python module whose class vLLM loads as a custom proposer. The command prints how to serve
    with it. specdec-core must be installed where vLLM runs, and plugins with it. For drafters that need token ids
    alone: those that look up n-grams or copy, chains of them, and plugins that declare it.

    Relative paths in the drafter's settings start in the current folder.

    For example:

    ```
    specdec export --to vllm exported --drafter prompt-copy
    specdec export --to vllm exported --gamma 8 \
        --drafter "{name: prompt-copy, min_match: 3}"
    ```
    """
    given = {"drafter": parse_value(drafter, "--drafter"), "gamma": parse_value(gamma, "--gamma")}
    config = validated(run_model(default_registry()), given).drafter
    if to == "vllm":
        _to_vllm(folder, given["drafter"], config, given["gamma"], overwrite)


def _to_vllm(folder: Path, given: str | Mapping[str, Any], config: Any, gamma: object, overwrite: bool) -> None:
    if not isinstance(gamma, int) or gamma < 1:
        raise ConfigError(
            f"--gamma: vLLM drafts a fixed number of tokens, at least 1; given {gamma!r}. Gamma controllers work "
            "with --to transformers."
        )
    check_exportable(default_registry(), config)
    path = write_module(folder, given, config.name, gamma, overwrite)
    console = output_console()
    console.print(f"written: {path}\n\nServe a model with it:\n", soft_wrap=True)
    console.print(f"    {serve_command(path, gamma)}", soft_wrap=True)
