"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

StudyFile: TypeAlias = Annotated[Path, typer.Argument(help="YAML file of a study.", metavar="STUDY")]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", help="Replace a value, e.g. generation.seed=1; may be repeated.", metavar="KEY=VALUE"),
]
