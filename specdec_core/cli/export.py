"""`specdec export`: a drafter in the server that someone already runs."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from typer import Argument, Option

from specdec_core.cli.options.shared_options import validated
from specdec_core.cli.terminal.console import output_console
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
        str | None,
        Option(
            help="Tokens drafted per step: a number, or, for transformers, YAML of a controller.  "
            "[default: for vLLM what the drafter was made for, else 4]"
        ),
    ] = None,
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
      alone, a Python module that vLLM loads as a custom proposer; nothing but the command for `mtp` and
      `assistant`.

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
    given = {"drafter": parse_value(drafter, "--drafter")}
    asked = None if gamma is None else parse_value(gamma, "--gamma")
    steps = {"gamma": vllm_module.DEFAULT_GAMMA if asked is None else asked}
    config = validated(run_model(default_registry()), given | steps).drafter
    if to == "transformers":
        where = f"written: {transformers_folder.write_folder(folder, model, given | steps, overwrite)}"
        command, more = transformers_folder.serve_command(folder), ""
    else:
        if model is not None:
            raise ConfigError("--model: with --to vllm, vLLM's own command names the model; leave it out.")
        if asked is not None and (not isinstance(asked, int) or asked < 1):
            raise ConfigError(
                f"--gamma: vLLM drafts a fixed number of tokens, at least 1; given {asked!r}. Gamma controllers "
                "work with --to transformers."
            )
        made = vllm_module.export(default_registry(), folder, given["drafter"], config, asked, overwrite=overwrite)
        where = f"written: {made.path}" if made.path else f"nothing to write: vLLM reads {made.model}"
        command = made.command
        more = (
            f"\n\nnum_speculative_tokens {made.gamma}: {made.reason}. `specdec compare STUDY --set deploy=vllm` "
            "forecasts others."
        )
    output_console().print(f"{where}\n\nServe with it:\n\n    {command}{more}", soft_wrap=True)
