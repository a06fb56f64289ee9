"""`specdec new`: a package for a plugin of one's own."""

import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from specdec_core.cli.console import output_console
from specdec_core.errors import ConfigError
from specdec_core.registry import WORD_FOR_KIND, default_registry
from specdec_core.scaffold import (
    STYLES,
    File,
    Kind,
    Style,
    check_free,
    names_of,
    package_files,
    write_package,
)

_NEXT = (
    ("pip install -e '.[test]'", "so that changes of its files count at once"),
    ("specdec plugins", "lists it"),
    ("pytest", "the conformance kit, and a test of its own"),
    ("specdec compare study.yaml", "a table of it beside others"),
)


def new(
    name: Annotated[str, Argument(help="What studies will call it, e.g. last-word.", metavar="NAME")],
    kind: Annotated[Kind, Option(help="A drafter, or a controller of gamma or lenience.")] = "drafter",
    style: Annotated[
        Style | None,
        Option(
            help="How a drafter is written: one function from tokens to tokens, one from a prefix to logits, or "
            "sessions with state of their own.",
            show_default="deterministic",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Where it goes, in place of specdec-NAME.", metavar="FOLDER"),
    ] = None,
) -> None:
    """Write a package for a plugin of your own: it installs, passes the conformance kit, and runs in a study.

    What it does at first is simple and real; change it from there. A folder that is not empty is left alone.
    NAME has small letters, digits, and - or _ between words; nothing that is installed may have it.

    What is written:

    - the module, with the class, its settings and the hook that announces it
    - tests on the conformance kit
    - pyproject.toml, which makes it a plugin
    - a study that compares it with others, and a README with the commands

    For example:

    ```
    specdec new last-word
    specdec new last-word --style autoregressive
    specdec new steady --kind gamma --output plugins/steady
    ```
    """
    if style is not None and kind != "drafter":
        raise ConfigError(
            f"--style says how a drafter is written, and this is a {WORD_FOR_KIND[kind]}; leave it out."
        )
    names = names_of(kind, name)
    check_free(default_registry(), kind, names)
    folder = output or Path(names.distribution)
    files = package_files(names, kind, style or STYLES[0])
    write_package(folder, files)
    _say(f"{WORD_FOR_KIND[kind]} {name}", folder, files)


def _say(what: str, folder: Path, files: tuple[File, ...]) -> None:
    """Print what was written, and what to do next."""
    width = max(len(file.path) for file in files)
    commands = [(f"cd {shlex.quote(str(folder))}", ""), *_NEXT]
    broad = max(len(command) for command, _ in commands)
    lines = [f"The {what} is in {folder}:", ""]
    lines += [f"  {file.path:<{width}}  {file.about}" for file in files]
    lines += ["", "Next:", ""]
    lines += [f"  {command:<{broad}}  # {why}" if why else f"  {command}" for command, why in commands]
    console = output_console()
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
