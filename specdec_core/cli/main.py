"""The command `specdec`: its sub-commands and error handling."""

import re
import sys
import traceback
from contextlib import suppress
from typing import Annotated

import typer
from typer.core import TyperCommand, TyperGroup

from specdec_core._version import installed_version
from specdec_core.cli.check import check
from specdec_core.cli.compare import compare
from specdec_core.cli.export import export
from specdec_core.cli.generate import generate
from specdec_core.cli.listing import plugins, schema, validate
from specdec_core.cli.measure import measure
from specdec_core.cli.new import new
from specdec_core.cli.options.shared_options import INTERRUPTED
from specdec_core.cli.record import record
from specdec_core.cli.replay import replay
from specdec_core.cli.start import Stopped
from specdec_core.cli.terminal.console import error_console, prepare_streams
from specdec_core.cli.theory import theory_app
from specdec_core.cli.train import train_app
from specdec_core.cli.tune import tune
from specdec_core.interface.errors import SpecdecError, exception_text

_OPTIONAL = {
    "--ray": (re.compile(r"auto|local|(ray://)?[^\s/\\]+:\d+"), "auto"),
    "--trace": (re.compile(r".+\.html?", re.IGNORECASE | re.DOTALL), "-"),
}
"""Options whose value may be left out: the pattern of a value, as opposed to an argument, and the default."""


class _Command(TyperCommand):
    """Gives options their default where no value follows; typer has no options whose value may be left out."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read the options of the command."""
        own = args[: args.index("--")] if "--" in args else args
        given = []
        for arg, following in zip(own, [*own[1:], ""], strict=False):
            pattern, default = _OPTIONAL.get(arg, (None, ""))
            given.append(arg if pattern is None or pattern.fullmatch(following) else f"{arg}={default}")
        return super().parse_args(ctx, [*given, *args[len(own) :]])


class _Group(TyperGroup):
    """Turns errors that the user can fix into a message and an exit code."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Accept `--debug` after the command too, where people add it once something went wrong."""
        own = args[: args.index("--")] if "--" in args else args
        if "--debug" in own:
            args = ["--debug", *(arg for arg in own if arg != "--debug"), *args[len(own) :]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, Exception) as error:
            stopped = error if isinstance(error, KeyboardInterrupt) else Stopped.received
            if stopped is None and not isinstance(error, SpecdecError):
                raise
            # The message of a stopped command says how to resume, if it can.
            text = traceback.format_exc() if ctx.params.get("debug") else str(stopped or error) or "stopped."
            with suppress(OSError):  # after SIGHUP there may be no terminal
                error_console().print(text, style=None if stopped else "red", soft_wrap=True)
            raise typer.Exit(getattr(stopped or error, "exit_code", INTERRUPTED)) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"specdec {installed_version()}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    r"""Generate text faster with speculative decoding, without changing the model's output distribution.

    Drafters are plugins, and `specdec compare` shows which one pays. Start with:

    ```
    specdec plugins
    specdec generate "def main():" --trace \
        --drafter "{name: transformer, model: builtin:drafter}"
    specdec compare examples/quickstart.yaml
    specdec measure --drafter "{name: transformer, model: builtin:drafter}"
    ```

    Exit codes: 0 success; 1 a failed check of `specdec check`, a plugin that failed while text was generated, a
    lossless run that departs from the baseline at temperature 0, or an internal error; 2 an error that you can
    fix, explained on standard error; 130 stopped with Ctrl-C, and 128 + n with another signal n.
    """


for _command in (
    compare,
    record,
    replay,
    tune,
    measure,
    generate,
    export,
    new,
    check,
    plugins,
    validate,
    schema,
):
    app.command(cls=_Command)(_command)
app.add_typer(train_app, name="train")
app.add_typer(theory_app, name="theory")


def main() -> None:
    """Run the command line; an unexpected exception is reported as an internal error, with exit code 1."""
    prepare_streams()
    try:
        app(prog_name="specdec")
    except Exception as error:
        if "--debug" in sys.argv[1:]:
            raise
        error_console().print(
            f"internal error: {exception_text(error)}\nThis is a bug in specdec or in a plugin; "
            "run the command with --debug to see where.",
            style="red",
            soft_wrap=True,
        )
        sys.exit(1)
