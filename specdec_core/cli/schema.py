"""`specdec schema`: the JSON schema of a study."""

import json

import typer

from specdec_core.registry import default_registry
from specdec_core.study import study_schema


def schema() -> None:
    """Print the JSON schema of a study, the settings of all installed plugins included.

    Editors complete and check a study whose first line is `# yaml-language-server: $schema=specdec.schema.json`.

    For example:

    ```
    specdec schema > specdec.schema.json
    ```
    """
    typer.echo(json.dumps(study_schema(default_registry()), indent=2, ensure_ascii=False))
