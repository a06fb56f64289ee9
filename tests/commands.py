"""Commands, run in this process."""

from typing import Any

from typer.testing import CliRunner, Result

from specdec_core.cli.main import app


def run_command(*words: object, **options: Any) -> Result:
    """Run `specdec` with these words."""
    return CliRunner().invoke(app, list(map(str, words)), **options)
