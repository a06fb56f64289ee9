"""`specdec check`: the conformance kit on an installed plugin, run by pytest."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Argument, Option

from specdec_core.interface.errors import ConfigError, unknown_name
from specdec_core.interface.spec import PluginKind
from specdec_core.study.config.overrides import set_dotted
from specdec_core.study.config.yaml_source import parse_value
from specdec_core.testing.registration import KINDS, TIMEOUT


def check(
    plugin: Annotated[str, Argument(help="Kind and name, e.g. drafter:prompt-copy.", metavar="KIND:NAME")],
    pytest_options: Annotated[
        list[str] | None, Argument(help="Options of pytest, e.g. -x or --pdb.", metavar="-- PYTEST_OPTION")
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", help="A setting of the plugin, e.g. min_match=2; can be repeated.", metavar="KEY=VALUE"),
    ] = None,
    only: Annotated[
        list[str] | None, Option(help="Run only this check; can be repeated.", metavar="CHECK")
    ] = None,
    keyword: Annotated[
        str, Option("-k", help='Run the checks whose names match, e.g. "lossless and not trees".', metavar="NAMES")
    ] = "",
    require: Annotated[
        list[str] | None, Option(help="Make this optional check count; can be repeated.", metavar="CHECK")
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="Leave out slow checks, and try fewer texts and samples.")
    ] = False,
    timeout: Annotated[
        float, Option(min=0, help="Stop a check that takes longer; 0 for no limit.", metavar="SECONDS")
    ] = TIMEOUT,
    total_timeout: Annotated[
        float, Option(min=0, help="Run no further checks after this time; 0 for no limit.", metavar="SECONDS")
    ] = 600.0,
    seed: Annotated[int, Option(help="Seed of all random numbers.")] = 0,
    device: Annotated[str, Option(help="Device of the targets: cpu or cuda.")] = "cpu",
) -> None:
    """Run the conformance kit on an installed plugin: small named checks, on targets with six token ids.

    A failure shows what the check did, got and expected. Optional checks count only with --require. If the plugin
    is slow, checks try fewer texts and samples. Options of pytest follow `--`.

    Exit code 1: a check failed, or was not run for lack of time.

    For example:

    ```
    specdec check drafter:prompt-copy
    specdec check drafter:prompt-copy --set min_match=2 --only lossless
    specdec check drafter:prompt-copy --quick -k "lossless or greedy" -- -x
    specdec check gamma:fixed --set gamma=3
    ```
    """
    kind, name = _parse_plugin(plugin)
    given = _parse_assignments(settings or ())
    from specdec_core.models.packages import require as require_package

    require_package("pytest", "specdec check", "specdec-core[kit]")
    from specdec_core.testing import named
    from specdec_core.testing.pytest_plugin import Suite

    subject = named(kind, name, given, seed=seed, device=device)
    suite = Suite(
        subject,
        only=only or (),
        require=require or (),
        quick=quick,
        timeout=timeout,
        total_timeout=total_timeout,
    )
    code = suite.run([*(["-k", keyword] if keyword else []), *(pytest_options or ())])
    if code:
        raise typer.Exit(code)


def _parse_plugin(text: str) -> tuple[PluginKind, str]:
    """Parse `kind:name`."""
    kind, _, name = text.partition(":")
    if not name:
        raise ConfigError(f"specdec check {text}: expected KIND:NAME, e.g. drafter:{kind or 'prompt-copy'}.")
    if kind not in KINDS:
        raise ConfigError(f"specdec check {text}: " + unknown_name("kind of plugin", kind, KINDS))
    return kind, name


def _parse_assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Parse settings of the form `key=value`, with a dotted key and a YAML value."""
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text}: expected key=value, e.g. min_match=2.")
        try:
            set_dotted(settings, key.strip(), parse_value(value, f"--set {text}"))
        except ConfigError as error:
            raise ConfigError(f"--set {error}") from None
    return settings
