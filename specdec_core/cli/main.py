"""The command `specdec`: its sub-commands, and what becomes of errors."""

import sys
import traceback
from typing import Annotated

import typer
from typer.core import TyperGroup

import specdec_core
from specdec_core.cli.check import check
from specdec_core.cli.compare import compare
from specdec_core.cli.console import INTERRUPTED, error_console
from specdec_core.cli.generate import generate
from specdec_core.cli.measure import measure
from specdec_core.cli.new import new
from specdec_core.cli.plugins import plugins
from specdec_core.cli.schema import schema
from specdec_core.cli.theory import theory_app
from specdec_core.cli.train import train_app
from specdec_core.cli.validate import validate
from specdec_core.errors import SpecdecError


class _Group(TyperGroup):
    """Turns errors that the user can mend into a message and an exit code."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Accept `--debug` behind the command too, where people write it once something went wrong."""
        own = args[: args.index("--")] if "--" in args else args
        if "--debug" in own:
            args = ["--debug", *(arg for arg in own if arg != "--debug"), *args[len(own) :]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """Run the command."""
        try:
            return super().invoke(ctx)
        except SpecdecError as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            else:
                error_console().print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt as stopped:
            if ctx.params.get("debug"):
                traceback.print_exc()
            # A command that knows how to go on says so in what it raises.
            error_console().print(str(stopped) or "stopped.", markup=False, soft_wrap=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specdec {specdec_core.__version__}, plugin border {specdec_core.BORDER_VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Speculative decoding in which every guess is a plugin.

    Start with:

    ```
    specdec plugins
    specdec generate "def main():" --drafter "{name: transformer, model: builtin:drafter}" --trace
    specdec compare examples/quickstart.yaml
    specdec measure --drafter "{name: transformer, model: builtin:drafter}" --tokens 1000
    ```

    Exit codes: 0 all went well; 1 a check of `specdec check` failed; 2 something you can mend, said on standard
    error; 130 stopped with Ctrl-C.
    """


for _command in (compare, measure, generate, new, check, plugins, validate, schema):
    app.command()(_command)
app.add_typer(train_app, name="train")
app.add_typer(theory_app, name="theory")


def main() -> None:
    """Run the command line; what is no fault of the user's is reported as a defect, with exit code 1."""
    try:
        app(prog_name="specdec")
    except Exception as error:
        if "--debug" in sys.argv[1:]:
            raise
        error_console().print(
            f"internal error: {type(error).__name__}: {error}\nThis is a defect of specdec or of a plugin; "
            "the same command with --debug shows where.",
            style="red",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(1)
