"""`specdec theory speed`: what is expected of a drafter with each gamma."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Required, TypedDict

import typer
from rich.table import Table

from specdec_core.cli.console import output_console
from specdec_core.cli.theory.parts import AsJson, mendable, print_json
from specdec_core.errors import ConfigError
from specdec_core.measurement.expectation import rates_by_position, seconds_by_gamma
from specdec_core.measurement.file import read_measurement
from specdec_core.theory import step_seconds
from specdec_core.theory.outlook import AtGamma, Outlook, outlook
from specdec_core.theory.ranges import check_gamma

_MOST = 100_000


def speed(
    alpha: Annotated[
        float | None, typer.Option(help="Expected acceptance rate, from 0 to 1.", metavar="RATE")
    ] = None,
    c: Annotated[
        float | None,
        typer.Option(help="Time of one run of the drafter over that of one of the target.", metavar="RATIO"),
    ] = None,
    gamma: Annotated[int | None, typer.Option(help="Show this number of draft tokens too.")] = None,
    c_hat: Annotated[
        float,
        typer.Option(help="Operations of the drafter for a token over those of the target.", metavar="RATIO"),
    ] = 0.0,
    verify: Annotated[
        str | None,
        typer.Option(
            help="Time in which the target verifies 0, 1, 2, ... draft tokens, in any unit: 1,1.1,1.3; or of some "
            "numbers of tokens: 0:45,3:80,7:105. Others are interpolated.",
            metavar="TIMES",
        ),
    ] = None,
    most: Annotated[int, typer.Option(help="The largest gamma to look at.")] = 1000,
    measured: Annotated[
        Path | None,
        typer.Option(help="Take alpha, c and times from what `specdec measure` wrote.", metavar="FILE"),
    ] = None,
    drafter: Annotated[str | None, typer.Option(help="Which drafter of the measurement.", metavar="NAME")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="At which temperature it was measured: 1 when left out.")
    ] = None,
    lenience: Annotated[
        float | None, typer.Option(help="At which lenience it was measured: 1 when left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Expect tokens a step, speed, operations and memory reads for each gamma, and say which gamma is best.

    Numbers in brackets are those of the paper's equation, theorems and section. Section 3.3 assumes that the
    target verifies a draft in the time of one token. Where it does not, say with --verify what it takes, or
    with --measured what was measured: then the best gamma is the one for those times.

    For example:

    ```
    specdec theory speed --alpha 0.62 --c 0.02
    specdec theory speed --alpha 0.8 --c 0.05 --gamma 12 --verify 0:45,3:80,7:105
    ```
    """
    with mendable():
        check_gamma(most, _MOST, "which would be tried one by one", name="most")
        if measured is None:
            _refuse(
                "is of a measurement; give --measured too",
                drafter=drafter,
                temperature=temperature,
                lenience=lenience,
            )
            basis = _given(alpha, c, verify, most)
        else:
            _refuse(
                "is in the measurement; leave it out, or leave --measured out", alpha=alpha, c=c, verify=verify
            )
            basis = _measured(measured, drafter, temperature, lenience)
        result = outlook(**basis, c_hat=c_hat, gamma=gamma, most=most)
    if as_json:
        print_json(asdict(result))
        return
    console = output_console()
    console.print(_speed_table(result, gamma, by_position=measured is not None))
    for line in _conclusions(result):
        console.print(line, markup=False, soft_wrap=True)


class _Basis(TypedDict, total=False):
    """What an outlook is made from."""

    alpha: Required[float]
    c: Required[float]
    rates: tuple[float, ...]
    seconds: tuple[float, ...]


def _refuse(why: str, **options: object) -> None:
    """Refuse options that would be of no effect."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name} {value} {why}.")


def _given(alpha: float | None, c: float | None, verify: str | None, most: int) -> _Basis:
    if alpha is None or c is None:
        raise ConfigError("give --alpha and --c, or --measured with a file that `specdec measure` wrote.")
    if verify is None:
        return {"alpha": alpha, "c": c}
    return {"alpha": alpha, "c": c, "seconds": step_seconds(c, most, _times(verify))}


def _measured(path: Path, name: str | None, temperature: float | None, lenience: float | None) -> _Basis:
    temperature, lenience = (1.0 if given is None else given for given in (temperature, lenience))
    measurement = read_measurement(path)
    found, acceptance = measurement.choose(path, name, temperature, lenience)
    steps = found.seconds.step
    rates = rates_by_position(acceptance, len(steps) - 1) or (acceptance.alpha,)
    seconds = seconds_by_gamma(steps, acceptance, measurement.batch_size)
    # Section 3 knows no step without a draft: to it, a token that is not proposed is one that is refused.
    return {"alpha": rates[0], "c": found.c, "rates": rates, "seconds": seconds}


def _times(text: str) -> dict[int, float]:
    """Return T(k) in units of T(0) from `1,1.1,1.3` or `0:45,3:80`."""
    known: dict[int, float] = {}
    for place, part in enumerate(text.split(",")):
        tokens, colon, time = part.rpartition(":")
        try:
            k = int(tokens) if colon else place
            value = float(time)
        except ValueError:
            raise ConfigError(
                f"--verify holds times, such as 1,1.1,1.3, or TOKENS:TIME, such as 0:45,3:80; given {part!r}."
            ) from None
        if k in known:
            raise ConfigError(f"--verify says the time of {k} draft tokens twice.")
        if not 0 < value < math.inf:
            raise ConfigError(f"--verify: a time must be a finite number above 0; given {part!r}.")
        known[k] = value
    if 0 not in known:
        raise ConfigError("--verify must say the time of 0 draft tokens, a plain target call; it does not.")
    return {k: value / known[0] for k, value in known.items()}


def _speed_table(result: Outlook, asked: int | None, *, by_position: bool) -> Table:
    timed = result.best.improvement_at_cost is not None
    table = Table(header_style="bold")
    headings = [
        "gamma",
        "tokens a step (1)",
        "speed (3.8)",
        "operations (3.11)",
        "memory reads (3.4)",
    ]
    headings += ["tokens by position"] * by_position + ["speed at these times"] * timed
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in result.gammas:
        cells = [str(row.gamma), f"{row.tokens:.3f}", f"{row.improvement:.3f}×", f"{row.operations:.3f}×"]
        cells.append(f"1/{row.memory:.3f}")
        if by_position:
            cells.append(f"{row.tokens_by_position:.3f}")
        if timed:
            cells.append(f"{row.improvement_at_cost:.3f}×")
        style = "bold green" if row.gamma == result.best.gamma else None
        table.add_row(*cells, _notes(row, result, timed, asked), style=style)
    return table


def _notes(row: AtGamma, result: Outlook, timed: bool, asked: int | None) -> str:
    notes = []
    if row.gamma == result.best.gamma:
        notes.append("best")
    if timed and row.gamma == result.optimal.gamma:
        notes.append("best by 3.8")
    if row.gamma == asked:
        notes.append("asked for")
    return ", ".join(notes)


def _conclusions(result: Outlook) -> Iterator[str]:
    alpha, c, optimal = result.alpha, result.c, result.optimal
    yield f"alpha {alpha:g}, c {c:g}, c_hat {result.c_hat:g}"
    if result.best.improvement_at_cost is not None:
        yield _best("With these times the best gamma", result.best.gamma, result.best.improvement_at_cost, result)
        yield "If the target verified a draft in the time of one token, as section 3.3 assumes:"
    if result.improves:
        yield f"Corollary 3.9: alpha is above c, so drafting pays: at least {result.least_improvement:.3f}×."
    else:
        yield "Corollary 3.9: alpha is not above c, so no gamma pays; decode plainly."
    yield _best("Section 3.5: the optimal gamma", optimal.gamma, optimal.improvement, result)
    if math.isinf(result.oracle_improvement):
        yield "An oracle for gamma would draft the whole text in one step: there is no bound."
        return
    more = result.oracle_improvement / optimal.improvement - 1
    yield (
        f"An oracle for gamma: {result.oracle_tokens:.3f} tokens a step, {result.oracle_improvement:.3f}×, "
        f"{more:.0%} more than the optimal gamma."
    )


def _best(what: str, gamma: int, improvement: float, result: Outlook) -> str:
    limit = ", the largest that was looked at" if gamma == result.most else ""
    return f"{what} is {gamma}{limit}, for {improvement:.3f}×."
