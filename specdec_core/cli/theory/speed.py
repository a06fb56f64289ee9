"""`specdec theory speed`: the speed-up to expect from a drafter with each gamma."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from specdec_core.cli.options.shared_options import AsJson, Wide, as_config_error, output_console, print_json
from specdec_core.cli.options.study_options import grouped
from specdec_core.cli.theory.profile_forecast import show_profile_forecast
from specdec_core.costs import Forecast, GammaForecast, forecast, step_seconds
from specdec_core.interface.errors import ConfigError
from specdec_core.measurement.measurement_file import read_measurement
from specdec_core.study.report.formats import number
from specdec_core.study.report.layout import Column, Prose, ReportTable, Row, for_terminal
from specdec_core.theory.ranges import check_gamma

_MAX_GAMMA = 100_000


@dataclass(frozen=True, kw_only=True)
class _Given:
    """What is known of drafter and target."""

    alpha: Annotated[float | None, typer.Option(help="Expected acceptance rate, from 0 to 1.", metavar="RATE")] = (
        None
    )
    c: Annotated[
        float | None,
        typer.Option(help="Time to draft one token over the time of a target call.", metavar="RATIO"),
    ] = None
    gamma: Annotated[int | None, typer.Option(help="Also show this number of draft tokens.")] = None
    c_hat: Annotated[
        float,
        typer.Option(help="Operations of the drafter per token over those of the target.", metavar="RATIO"),
    ] = 0.0
    verify: Annotated[
        str | None,
        typer.Option(
            help="Time in which the target verifies 0, 1, 2, ... draft tokens, in any unit: 1,1.1,1.3; or some "
            "of them: 0:45,3:80,7:105.",
            metavar="TIMES",
        ),
    ] = None
    max_gamma: Annotated[int, typer.Option(help="The largest gamma to consider.")] = 1000

    def forecast(self) -> Forecast:
        """Return the forecast for the acceptance rate and the times that were given."""
        if self.alpha is None or self.c is None:
            raise ConfigError("give --alpha and --c, or --measured with a file that `specdec measure` wrote.")
        seconds = None if self.verify is None else step_seconds(self.c, self.max_gamma, _times(self.verify))
        return forecast(
            self.alpha, self.c, c_hat=self.c_hat, gamma=self.gamma, max_gamma=self.max_gamma, seconds=seconds
        )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A measurement, and the part of it that is meant."""

    measured: Annotated[
        Path | None,
        typer.Option(help="Read alpha, c and times from a file that `specdec measure` wrote.", metavar="FILE"),
    ] = None
    drafter: Annotated[str | None, typer.Option(help="Drafter of the measurement.", metavar="NAME")] = None
    temperature: Annotated[float | None, typer.Option(help="Temperature of the measurement; by default 1.")] = None
    lenience: Annotated[float | None, typer.Option(help="Lenience of the measurement; by default 1.")] = None

    def forecast(self, given: _Given) -> Forecast:
        """Return the forecast for the drafter and the settings that are meant."""
        assert self.measured is not None, "the caller has seen to it"
        measurement = read_measurement(self.measured)
        temperature, lenience = (1.0 if one is None else one for one in (self.temperature, self.lenience))
        drafter, acceptance = measurement.choose(self.measured, self.drafter, temperature, lenience)
        size = measurement.batch_size
        return drafter.forecast(acceptance, size, c_hat=given.c_hat, gamma=given.gamma, max_gamma=given.max_gamma)


@grouped
def speed(
    *,
    given: _Given,
    measurement: _Measured,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --alpha: a profile, as `specdec profile` writes it.",
            metavar="FILE",
        ),
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Predict tokens per step, speed, operations and memory reads for each gamma, and find the best gamma.

    Section 3.3 of the paper assumes that the target verifies a draft in the time of one token. If it does not,
    pass the times with --verify or a measurement with --measured.

    For example:

    ```
    specdec theory speed --alpha 0.62 --c 0.02
    specdec theory speed --alpha 0.8 --c 0.05 --verify 0:45,3:80,7:105
    specdec theory speed --profile speculation_profile.json --c 0.05
    ```
    """
    with as_config_error():
        check_gamma(given.max_gamma, _MAX_GAMMA, "as every gamma is tried", name="max_gamma")
        if profile is not None:
            _refuse("is part of the profile; omit it, or omit --profile", alpha=given.alpha, **asdict(measurement))
            _refuse("is not forecast with --profile; omit it", gamma=given.gamma, c_hat=given.c_hat or None)
            times = None if given.verify is None else _times(given.verify)
            show_profile_forecast(profile, given.c, times, given.max_gamma, as_json=as_json, wide=wide)
            return
        if measurement.measured is None:
            _refuse("requires --measured", **asdict(measurement))
            result = given.forecast()
        else:
            known = {"alpha": given.alpha, "c": given.c, "verify": given.verify}
            _refuse("is part of the measurement; omit it, or omit --measured", **known)
            result = measurement.forecast(given)
    if as_json:
        print_json(asdict(result))
        return
    console = output_console(wide=wide)
    console.print(for_terminal(_speed_table(result, given.gamma, by_position=measurement.measured is not None)))
    for line in _conclusions(result):
        console.print(Prose(line))


def _refuse(why: str, **options: object) -> None:
    """Reject options that would have no effect."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name} {value} {why}.")


def _times(text: str) -> dict[int, float]:
    """Return T(k) in units of T(0) from `1,1.1,1.3` or `0:45,3:80`."""
    known: dict[int, float] = {}
    for index, part in enumerate(text.split(",")):
        tokens, colon, time = part.rpartition(":")
        try:
            k = int(tokens) if colon else index
            value = float(time)
        except ValueError:
            raise ConfigError(
                f"--verify: expected times such as 1,1.1,1.3, or TOKENS:TIME such as 0:45,3:80; given {part!r}."
            ) from None
        if k in known:
            raise ConfigError(f"--verify gives the time of {k} draft tokens twice.")
        if not 0 < value < math.inf:
            raise ConfigError(f"--verify: a time must be a finite number above 0; given {part!r}.")
        known[k] = value
    if 0 not in known:
        raise ConfigError("--verify must include the time of 0 draft tokens, a target call without a draft.")
    return {k: value / known[0] for k, value in known.items()}


def _speed_table(result: Forecast, requested: int | None, *, by_position: bool) -> ReportTable:
    timed = result.best.improvement_at_cost is not None
    columns = (
        Column("gamma"),
        Column("tokens/step\n(1)", spare=1),
        Column("speed\n(3.8)"),
        Column("operations\n(3.11)", spare=3),
        Column("memory reads\n(3.4)", spare=4),
        *([Column("tokens by\nposition", spare=2)] if by_position else []),
        *([Column("speed at\nthese times")] if timed else []),
        Column("", numeric=False),
    )
    rows = []
    for row in result.gammas:
        cells = [str(row.gamma), f"{row.tokens:.3f}", number(row.improvement, 3, "×")]
        cells += [number(row.operations, 3, "×"), f"1/{row.memory:.3f}"]
        if by_position:
            cells.append(number(row.tokens_by_position, 3))
        if timed:
            cells.append(number(row.improvement_at_cost, 3, "×"))
        style = "bold green" if row.gamma == result.best.gamma else ""
        rows.append(Row((*cells, _notes(row, result, timed, requested)), style))
    return ReportTable(columns, tuple(rows))


def _notes(row: GammaForecast, result: Forecast, timed: bool, requested: int | None) -> str:
    notes = []
    if row.gamma == result.best.gamma:
        notes.append("best")
    if timed and row.gamma == result.optimal.gamma:
        notes.append("best by 3.8")
    if row.gamma == requested:
        notes.append("requested")
    return ", ".join(notes)


def _conclusions(result: Forecast) -> Iterator[str]:
    alpha, c, optimal = result.alpha, result.c, result.optimal
    yield f"acceptance rate (alpha) {alpha:g}, c {c:g}, c_hat {result.c_hat:g}"
    if result.best.improvement_at_cost is not None:
        yield _best("With these times the best gamma", result.best.gamma, result.best.improvement_at_cost, result)
        yield "If the target verified a draft in the time of one token, as section 3.3 assumes:"
    if result.improves:
        yield f"Corollary 3.9: alpha is above c, so drafting pays: at least {result.min_improvement:.3f}×."
    else:
        yield "Corollary 3.9: alpha is not above c, so no gamma pays; decode autoregressively."
    yield _best("Section 3.5: the optimal gamma", optimal.gamma, optimal.improvement, result)
    if math.isinf(result.oracle_improvement):
        yield "An oracle for gamma would draft the whole text in one step: the speed-up has no bound."
        return
    more = result.oracle_improvement / optimal.improvement - 1
    yield (
        f"An oracle for gamma: {result.oracle_tokens:.3f} tokens/step, {result.oracle_improvement:.3f}×, "
        f"{more:.0%} more than the optimal gamma."
    )


def _best(name: str, gamma: int, improvement: float, result: Forecast) -> str:
    limit = ", the largest that was considered" if gamma == result.max_gamma else ""
    return f"{name} is {gamma}{limit}, for {improvement:.3f}×."
