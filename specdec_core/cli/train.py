"""`specdec train`: run a trainer, and show how to use the result."""

import textwrap
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperGroup

from specdec_core.cli.options.shared_options import shown_progress
from specdec_core.cli.options.train_options import read_options, train_command
from specdec_core.cli.terminal.console import output_console
from specdec_core.interface import PluginConfig, PluginError, PluginSpec, TrainingReport
from specdec_core.registry.registry import default_registry
from specdec_core.study.progress import value_text


class _TrainerGroup(TyperGroup):
    """Has a command for each installed trainer, created on demand."""

    def list_commands(self, _: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names of the trainers."""
        return default_registry().names("trainer")

    def get_command(self, _: typer.Context, name: str) -> Any:  # type: ignore[override]
        """Return the command of a trainer; an unknown name is an error with near misses."""
        if name.startswith("-"):
            return None  # typer reports the unknown option
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

    Each trainer is a plugin with its own options, explained by its --help. Results are written whole or not at
    all: a training that is stopped or fails leaves nothing behind that looks finished.

    For example:

    ```
    specdec train ngram --help
    ```
    """


def _train(spec: PluginSpec, given: Mapping[str, Any], quiet: bool) -> None:
    """Run a trainer with the given options."""
    config = read_options(spec, given)
    try:
        with shown_progress(quiet=quiet) as progress:
            report = default_registry().create("trainer", spec.name, config).train(progress)
    except KeyboardInterrupt as stopped:
        stopped.args = (_stopped(config),)
        raise
    if not isinstance(report, TrainingReport):
        raise PluginError(
            f"trainer {spec.name!r} must return a TrainingReport; it returned a {type(report).__name__}."
        )
    _show(report)


def _stopped(config: PluginConfig) -> str:
    resume = getattr(config, "resume", None)
    if resume is None:
        return "stopped."
    again = "again" if resume else "with --resume"
    # Only the trainer knows whether it wrote a checkpoint.
    return f"stopped. Run the same command {again} to resume from the last checkpoint, if there is one."


def _show(report: TrainingReport) -> None:
    """Print the report, and how a study names the drafter."""
    console = output_console()
    width = max(map(len, report.facts), default=0)
    for name, value in report.facts.items():
        # Not a table: a long value, such as a path, must not be wrapped.
        console.print(f"{name:<{width}}  {value_text(value)}", soft_wrap=True)
    for path in report.written:
        console.print(f"written: {path}", soft_wrap=True)
    console.print("\nIn a study (paths are resolved against the study file's folder):\n", soft_wrap=True)
    console.print(textwrap.indent(usage_in_study(report.usage), "    "), soft_wrap=True)


def usage_in_study(usage: str) -> str:
    """Return the `runs` of a study that use a drafter.

    Args:
        usage: The value of `drafter:` as YAML: a name or a mapping, in one or more lines.
    """
    usage = textwrap.dedent(usage).strip()
    if usage.startswith("{") or ":" not in usage:
        first, *more = usage.splitlines()
        drafter = "\n".join([f" {first}", *(" " * 6 + line.strip() for line in more)])
    else:
        drafter = "\n" + textwrap.indent(usage, " " * 6)
    return f"runs:\n  - drafter:{drafter}\n    gamma: 4"
