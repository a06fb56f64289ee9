"""`specdec check`: the conformance kit on an installed plugin, run by pytest."""

import os
from typing import Annotated

import typer
from typer import Argument, Option

from specdec_core.interface.errors import ConfigError, unknown_name
from specdec_core.study.config.overrides import apply_overrides
from specdec_core.study.config.yaml_source import document_of

# The settings and tests of the folder in which the command runs have nothing to do with the plugin.
_OPTIONS = (
    *("-c", os.devnull, "--rootdir", os.curdir, "--noconftest", "--assert=plain"),
    *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:warnings"),
    *("--no-header", "-rsx", "-o", "console_output_style=classic"),
)
_SLOW = "lossless_ or inside_hierarchy or replay_equals_live or probability_bound or spec_imports_no_torch"
"""The checks that a quick run leaves out."""


def check(
    plugin: Annotated[str, Argument(help="Kind and name, e.g. drafter:prompt-copy.", metavar="KIND:NAME")],
    pytest_options: Annotated[
        list[str] | None, Argument(help="Options of pytest, e.g. -v or --pdb.", metavar="-- PYTEST_OPTION")
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", help="A setting of the plugin, e.g. min_match=2; can be repeated.", metavar="KEY=VALUE"),
    ] = None,
    keyword: Annotated[
        str, Option("-k", help='Run the checks whose names match, e.g. "lossless and not trees".', metavar="NAMES")
    ] = "",
    quick: Annotated[bool, Option("--quick", help="Leave out slow checks.")] = False,
    seed: Annotated[int, Option(help="Seed of all random numbers.")] = 0,
    device: Annotated[str, Option(help="Device of the targets: cpu or cuda.")] = "cpu",
) -> None:
    """Run the conformance kit on an installed plugin: small named checks, on targets with six token ids.

    A failure shows what the check did, got and expected. Optional checks count only with `-- --runxfail`.
    Options of pytest follow `--`.

    Exit code 1: a check failed.

    For example:

    ```
    specdec check drafter:prompt-copy
    specdec check drafter:prompt-copy --set min_match=2 -k lossless
    specdec check drafter:prompt-copy --quick -k "lossless or greedy" -- -x
    specdec check gamma:fixed --set gamma=3
    ```
    """
    kind, _, name = plugin.partition(":")
    if not name:
        raise ConfigError(f"specdec check {plugin}: expected KIND:NAME, e.g. drafter:{kind or 'prompt-copy'}.")
    document = document_of({}, plugin)
    apply_overrides(document, settings or (), in_run=True)
    from specdec_core.models.packages import require as require_package

    require_package("pytest", "specdec check", "specdec-core[kit]")
    import pytest

    from specdec_core.testing import suite

    if kind not in suite.KITS:
        raise ConfigError(f"specdec check {plugin}: " + unknown_name("kind of plugin", kind, suite.KITS))
    attributes = {"plugin": name, "settings": document.data, "seed": seed, "device": device}
    suite.TestPlugin = type("TestPlugin", (suite.KITS[kind],), attributes)
    chosen = f"({keyword}) and not ({_SLOW})" if keyword and quick else f"not ({_SLOW})" if quick else keyword
    code = pytest.main([*_OPTIONS, "-k", chosen, "--pyargs", suite.__name__, *(pytest_options or ())])
    if code:
        codes: dict[int, int] = {pytest.ExitCode.TESTS_FAILED: 1, pytest.ExitCode.INTERRUPTED: 130}
        raise typer.Exit(codes.get(code, 2))
