"""`specdec new`: a package for a new plugin."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from specdec_core.cli.scaffold.names import check_free, names_of
from specdec_core.cli.scaffold.package import STYLES, File, Kind, Style, package_files, write_package
from specdec_core.cli.terminal.console import output_console
from specdec_core.interface.errors import ConfigError
from specdec_core.registry.hookspecs import KIND_LABELS
from specdec_core.registry.registry import default_registry

_INSTALL = (
    ("pip install -e '.[test]'", "changes of its files take effect at once"),
    ("specdec plugins", "list it"),
)
_TEST = (
    ("pytest", "run the conformance kit and its own test"),
    ("specdec compare study.yaml", "compare it with others"),
)


def new(
    name: Annotated[str, Argument(help="The plugin's name in studies, e.g. last-word.", metavar="NAME")],
    kind: Annotated[Kind, Option(help="The kind of plugin to write.")] = "drafter",
    style: Annotated[
        Style | None,
        Option(
            help="The drafter's interface: a function from tokens to tokens, a function from a prefix to logits, "
            "sessions with state, or state that outlives requests.",
            show_default="deterministic",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="The folder to write; specdec-NAME by default.", metavar="FOLDER"),
    ] = None,
) -> None:
    """Write a package for a new plugin. It installs, passes the conformance kit, and runs in a study.

    The plugin is simple and works; change it from there. The folder must be empty. NAME has lowercase letters,
    digits, and - or _ between words, and must not be the name of an installed plugin.

    The package contains the module, tests with the conformance kit, pyproject.toml with the entry point, a study
    that compares it with others, and a README with the commands.

    For example:

    ```
    specdec new last-word
    specdec new last-word --style autoregressive
    specdec new steady --kind gamma --output plugins/steady
    ```
    """
    if style is not None and kind != "drafter":
        raise ConfigError(f"--style is for drafters, and this is a {KIND_LABELS[kind]}. Leave it out.")
    names = names_of(kind, name)
    check_free(default_registry(), kind, names)
    folder = output or Path(names.distribution)
    files = package_files(names, kind, style or STYLES[0])
    write_package(folder, files)
    replay = (f"specdec replay builtin:code {name}", "how much of its drafts is accepted, in seconds")
    commands = (*_INSTALL, *((replay,) if kind == "drafter" else ()), *_TEST)
    _print(f"{KIND_LABELS[kind]} {name}", folder, files, commands)


def _print(what: str, folder: Path, files: tuple[File, ...], following: Sequence[tuple[str, str]]) -> None:
    """Print the files and the next commands."""
    width = max(len(file.path) for file in files)
    commands = [(f"cd {shlex.quote(str(folder))}", ""), *following]
    command_width = max(len(command) for command, _ in commands)
    lines = [f"Wrote the {what} to {folder}:", ""]
    lines += [f"  {file.path:<{width}}  {file.about}" for file in files]
    lines += ["", "Next:", ""]
    lines += [f"  {command:<{command_width}}  # {why}" if why else f"  {command}" for command, why in commands]
    console = output_console()
    for line in lines:
        console.print(line, soft_wrap=True)
