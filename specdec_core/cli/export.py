"""`specdec export`: a drafter in the server that someone already runs."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from typer import Argument, Option

from specdec_core.cli.options.shared_options import output_console, validated
from specdec_core.interface.errors import ConfigError
from specdec_core.registry.registry import default_registry
from specdec_core.serving import transformers_folder, vllm_module
from specdec_core.study import run_model
from specdec_core.study.config.yaml_source import parse_value

Server: TypeAlias = Literal["transformers", "vllm"]


def export(
    folder: Annotated[Path, Argument(help="The folder to write into.", metavar="FOLDER")],
    to: Annotated[Server, Option(help="The server that decodes with the drafter.")],
    drafter: Annotated[str, Option(help="The drafter: a name, or YAML with its settings.")],
    gamma: Annotated[
        str, Option(help="Tokens drafted per step: a number, or, for transformers, YAML of a controller.")
    ] = "4",
    model: Annotated[
        str | None,
        Option(
            help="For transformers: the model to serve, whose files are linked into FOLDER.  "
            "[default: the one in FOLDER]"
        ),
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace what an earlier export wrote.")] = False,
) -> None:
    r"""Export a drafter to a server: transformers or vLLM.

    The command prints how to serve. The server needs specdec-core and the plugins.

    - transformers: the folder of a model with a custom_generate/generate.py, for `transformers serve`. Any drafter
      that works for the model works there.
    - vllm: a folder with the drafter's model, if vLLM runs such models itself; for drafters that need token ids
      alone, a Python module that vLLM loads as a custom proposer.

    For example:

    ```
    specdec export --to transformers served --model builtin:target \
        --drafter "{name: transformer, model: builtin:drafter}"
    specdec export --to vllm exported --drafter prompt-copy
    specdec export --to vllm head \
        --drafter "{name: eagle3, model: builtin:eagle3}"
    specdec export --to vllm exported --gamma 8 --overwrite \
        --drafter "{name: prompt-copy, min_match: 3}"
    ```
    """
    given = {"drafter": parse_value(drafter, "--drafter"), "gamma": parse_value(gamma, "--gamma")}
    config = validated(run_model(default_registry()), given).drafter
    if to == "transformers":
        path = transformers_folder.write_folder(folder, model, given, overwrite)
        command = transformers_folder.serve_command(folder)
    else:
        if model is not None:
            raise ConfigError("--model: with --to vllm, vLLM's own command names the model; leave it out.")
        tokens = given["gamma"]
        if not isinstance(tokens, int) or tokens < 1:
            raise ConfigError(
                f"--gamma: vLLM drafts a fixed number of tokens, at least 1; given {tokens!r}. Gamma controllers "
                "work with --to transformers."
            )
        if config.vllm_method is not None:
            path, command = folder, vllm_module.write_folder(folder, config, tokens, overwrite)
        else:
            vllm_module.check_exportable(default_registry(), config)
            path = vllm_module.write_proposer(folder, given["drafter"], config.name, tokens, overwrite)
            vllm_module.check_loads(path, default_registry(), config.name)
            command = vllm_module.serve_command(path, tokens)
    output_console().print(f"written: {path}\n\nServe with it:\n\n    {command}", soft_wrap=True)
