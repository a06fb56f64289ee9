"""`specdec replay`: the expected results of drafters on a record, without the target."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_core.cli.compare import read_machines, show
from specdec_core.cli.options.shared_options import Drafters, Machines, shown_progress
from specdec_core.cli.options.study_options import ResultOptions, StudyOptions, grouped, read_target
from specdec_core.cli.terminal.console import error_console
from specdec_core.interface.errors import ConfigError, SpecdecError
from specdec_core.offline.candidate_runs import DEFAULT_GAMMAS, DrafterLike, default_drafters, gammas_of
from specdec_core.study.config.yaml_source import parse_value

_YAML = (".yaml", ".yml")


@grouped
def replay(
    *,
    record: Annotated[
        str,
        typer.Argument(
            help="A folder that `specdec record` wrote, or a built-in one, such as builtin:code.",
            metavar="RECORD",
        ),
    ],
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="A study, as a .yaml file; or drafters, as for --drafter.  [default: those of this "
            "package that do without the target]",
            metavar="[STUDY|DRAFTER...]",
        ),
    ] = None,
    drafter: Drafters = None,
    gamma: Annotated[
        list[str] | None,
        typer.Option(
            help="Gamma of each drafter: a number, a range, or a controller; may be repeated.  [default: 1-8]"
        ),
    ] = None,
    machine: Machines = None,
    target: Annotated[
        str | None,
        typer.Option(help="The record's target. A hub model is loaded only if you name it, here or in a study."),
    ] = None,
    results: ResultOptions,
    how: StudyOptions,
) -> None:
    r"""Replay drafters on a record: what each would have done on the target's texts, without running the target.

    With a lossless acceptance rule the target's texts do not depend on the drafter, so the expected number of
    accepted tokens follows from a recorded text exactly.

    Drafters are replayed on every part of the record, at every gamma. The tasks of a study must be among those
    that were recorded, unless it has `runs` only. Runs that cannot be replayed (lenience below 1, lossy rules,
    trees, beams) are named, and the others continue.

    The output and the exit codes are those of `specdec compare`.

    For example:

    ```
    specdec replay builtin:code prompt-copy
    specdec replay builtin:code --gamma 4 \
        --drafter "{name: transformer, model: builtin:drafter}"
    specdec replay builtin:code examples/replay.yaml --output results
    ```
    """
    _check_order(record, what or ())
    chosen = _chosen([*(what or ()), *(drafter or ())], gamma) or _default_drafters(record, how.quiet)
    from specdec_core.offline.replay.comparison import replay as run_replay

    with shown_progress(quiet=how.quiet, loads=False) as progress:
        result = run_replay(
            record,
            chosen,
            target=None if target is None else read_target(target),
            gammas=gammas_of(gamma) if gamma else DEFAULT_GAMMAS,
            machines=read_machines(machine or (), record),
            output=results.output,
            settings=how.settings or (),
            fresh=results.fresh,
            max_runs=how.max_runs,
            ray=how.ray,
            progress=progress,
        )
    show(result, how)


def _check_order(record: str, others: Sequence[str]) -> None:
    """Check that what comes first is the record, if one of the arguments is."""
    if not others or _is_record(record):
        return
    for other in filter(_is_record, others):
        raise ConfigError(f"{record}: no record. Put the record first: `specdec replay {other} {record}`.")


def _is_record(text: str) -> bool:
    from specdec_core.offline.record.store import read_record

    try:
        read_record(text)
    except SpecdecError:
        return False
    return True


def _chosen(given: Sequence[str], gamma: Sequence[str] | None) -> Path | Sequence[DrafterLike]:
    """Return the study or the drafters that were given."""
    studies = [text for text in given if text.endswith(_YAML)]
    if not studies:
        return [_drafter(text) for text in given]
    if len(given) > 1 or gamma:
        raise ConfigError(
            f"{studies[0]} is a study, which names its drafters and gammas: leave out the others and --gamma, or "
            "leave out the study."
        )
    return Path(studies[0])


def _drafter(text: str) -> Any:
    """Return a drafter as a study would name it."""
    found = parse_value(text, "DRAFTER")
    if not isinstance(found, (str, dict)) or (isinstance(found, dict) and "name" not in found):
        raise ConfigError(f"DRAFTER: expected a name, or a mapping with `name` and settings; given {text!r}.")
    return found


def _default_drafters(record: str, quiet: bool) -> Sequence[DrafterLike]:
    """Return the installed drafters that can be replayed without the target, and say why the others cannot."""
    from specdec_core.offline.record.store import read_record

    drafters, left_out = default_drafters(read_record(record))
    for name, reason in {} if quiet else left_out.items():
        error_console().print(f"left out: {name}: {reason}", soft_wrap=True)
    return drafters
