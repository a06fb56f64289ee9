"""`specdec train`: run a trainer, and say what it made."""

import textwrap
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperGroup

from specdec_core.border import PluginConfig, PluginSpec, TrainingReport
from specdec_core.cli.console import error_console, output_console, quieten_libraries
from specdec_core.cli.stages import StageProgress, value_text
from specdec_core.cli.train_options import read_options, train_command
from specdec_core.errors import PluginError
from specdec_core.registry import default_registry


class _TrainerGroup(TyperGroup):
    """Has a command for every trainer that is installed, made when it is asked for."""

    def list_commands(self, _: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names of the trainers."""
        return default_registry().names("trainer")

    def get_command(self, _: typer.Context, name: str) -> Any:  # type: ignore[override]
        """Return the command of a trainer; a name that is not there is an error with near misses."""
        if name.startswith("-"):
            return None  # typer says which option it is that does not exist
        return train_command(default_registry().spec("trainer", name), _train)


train_app = typer.Typer(
    cls=_TrainerGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    subcommand_metavar="NAME [OPTIONS]",
)


@train_app.callback()
def _about() -> None:
    """Train a drafter: estimate its tables from text, or fit its weights to a target.

    Each trainer is a plugin with options of its own, which its --help explains. What is written is whole or not
    there: a training that is stopped or fails leaves nothing behind that looks finished.

    For example:

    ```
    specdec train ngram --help
    ```
    """


def _train(spec: PluginSpec, given: Mapping[str, Any], quiet: bool) -> None:
    """Run a trainer with the options that were given."""
    config = read_options(spec, given)
    with StageProgress(error_console(), quiet=quiet) as progress:
        try:
            progress.stage("loading torch and transformers")
            quieten_libraries()
            report = default_registry().create("trainer", spec.name, config).train(progress)
        except KeyboardInterrupt as stopped:
            raise KeyboardInterrupt(_stopped(config)) from stopped
        if not isinstance(report, TrainingReport):
            raise PluginError(
                f"trainer {spec.name!r} returns a {type(report).__name__}, which is no TrainingReport."
            )
    _show(report)


def _stopped(config: PluginConfig) -> str:
    resume = getattr(config, "resume", None)
    if resume is None:
        return "stopped."
    again = "again" if resume else "with --resume"
    # Before the first one there is nothing to go on from; only the trainer knows.
    return f"stopped. Give the same command {again} to go on from the last checkpoint, if there is one yet."


def _show(report: TrainingReport) -> None:
    """Print what was made, and how a study names it."""
    console = output_console()
    width = max(map(len, report.facts), default=0)
    for name, value in report.facts.items():
        # Not a table: a long value, such as a path, must stay in one piece.
        console.print(f"{name:<{width}}  {value_text(value)}", markup=False, soft_wrap=True)
    for path in report.written:
        console.print(f"written: {path}", markup=False, soft_wrap=True)
    console.print("\nIn a study (a path in it is meant from the study's folder):\n", markup=False, soft_wrap=True)
    console.print(textwrap.indent(usage_in_study(report.usage), "    "), markup=False, soft_wrap=True)


def usage_in_study(usage: str) -> str:
    """Return runs of a study in which a drafter is named.

    Args:
        usage: What stands behind `drafter:`, as YAML: a name or a mapping, in one line or more.
    """
    usage = textwrap.dedent(usage).strip()
    if usage.startswith("{") or ":" not in usage:
        first, *more = usage.splitlines()
        drafter = "\n".join([f" {first}", *(" " * 6 + line.strip() for line in more)])
    else:
        drafter = "\n" + textwrap.indent(usage, " " * 6)
    return f"runs:\n  - drafter:{drafter}\n    gamma: 4"
