"""`specdec theory`: the predictions of section 3 of the paper."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from specdec_core.cli.options.shared_options import AsJson, Wide, as_config_error, print_json
from specdec_core.cli.options.study_options import read_numbers
from specdec_core.cli.terminal.console import output_console
from specdec_core.costs.forecast import Forecast, GammaForecast, forecast
from specdec_core.costs.step_costs import step_seconds
from specdec_core.interface.errors import ConfigError
from specdec_core.study.report.formats import number
from specdec_core.study.report.layout import Column, Prose, ReportTable, Row
from specdec_core.theory.speed import check_gamma

theory_app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")

_MAX_GAMMA = 100_000


@theory_app.callback()
def _about() -> None:
    """Predict speed-ups with section 3 of the paper.

    Sections, equations and theorems are those of arXiv 2211.17192. No model is loaded.

    For example:

    ```
    specdec theory speed --alpha 0.62 --c 0.02
    ```
    """


@theory_app.command()
def speed(
    alpha: Annotated[float, typer.Option(help="Expected acceptance rate, from 0 to 1.", metavar="RATE")],
    c: Annotated[
        float, typer.Option(help="Time to draft one token over the time of a target call.", metavar="RATIO")
    ],
    gamma: Annotated[int | None, typer.Option(help="Also show this number of draft tokens.")] = None,
    c_hat: Annotated[
        float,
        typer.Option(help="Operations of the drafter per token over those of the target.", metavar="RATIO"),
    ] = 0.0,
    verify: Annotated[
        str | None,
        typer.Option(
            help="Time in which the target verifies 0, 1, 2, ... draft tokens, in any unit: 1,1.1,1.3; or some "
            "of them: 0:45,3:80,7:105.",
            metavar="TIMES",
        ),
    ] = None,
    max_gamma: Annotated[int, typer.Option(help="The largest gamma to consider.")] = 1000,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Predict tokens per step, speed, operations and memory reads for each gamma, and find the best gamma.

    Section 3.3 of the paper assumes that the target verifies a draft in the time of one token. If it does not,
    pass the times with --verify.

    For example:

    ```
    specdec theory speed --alpha 0.62 --c 0.02
    specdec theory speed --alpha 0.8 --c 0.05 --verify 0:45,3:80,7:105
    ```
    """
    with as_config_error():
        check_gamma(max_gamma, _MAX_GAMMA, "as every gamma is tried", name="max_gamma")
        seconds = None if verify is None else step_seconds(c, max_gamma, _times(verify))
        result = forecast(alpha, c, c_hat=c_hat, gamma=gamma, max_gamma=max_gamma, seconds=seconds)
    if as_json:
        print_json(asdict(result))
        return
    console = output_console(wide=wide)
    console.print(_speed_table(result, gamma))
    for line in _conclusions(result):
        console.print(Prose(line))


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


def _speed_table(result: Forecast, requested: int | None) -> ReportTable:
    timed = result.best.improvement_at_cost is not None
    columns = (
        Column("gamma"),
        Column("tokens/step\n(1)", spare=1),
        Column("speed\n(3.8)"),
        Column("operations\n(3.11)", spare=3),
        Column("memory reads\n(3.4)", spare=4),
        *([Column("speed at\nthese times")] if timed else []),
        Column("", numeric=False),
    )
    rows = []
    for row in result.gammas:
        cells = [str(row.gamma), f"{row.tokens:.3f}", number(row.improvement, 3, "×")]
        cells += [number(row.operations, 3, "×"), f"1/{row.tokens:.3f}"]
        if timed:
            cells.append(number(row.improvement_at_cost, 3, "×"))
        style = "bold green" if row.gamma == result.best.gamma else ""
        rows.append(Row((*cells, _notes(row, result, timed, requested)), style))
    return ReportTable(columns, tuple(rows))


def _notes(row: GammaForecast, result: Forecast, timed: bool, requested: int | None) -> str:
    notes = {
        "best": row.gamma == result.best.gamma,
        "best by 3.8": timed and row.gamma == result.optimal.gamma,
        "requested": row.gamma == requested,
    }
    return ", ".join(note for note, holds in notes.items() if holds)


def _conclusions(result: Forecast) -> Iterator[str]:
    alpha, c, optimal = result.alpha, result.c, result.optimal
    yield f"acceptance rate (alpha) {alpha:g}, c {c:g}, c_hat {result.c_hat:g}"
    if result.best.improvement_at_cost is not None:
        yield _best("With these times the best gamma", result.best.gamma, result.best.improvement_at_cost, result)
        yield "If the target verified a draft in the time of one token, as section 3.3 assumes:"
    if result.improves:
        least = (1 + alpha) / (1 + c)
        yield f"Corollary 3.9: alpha is above c, so drafting pays: at least {least:.3f}×."
    else:
        yield "Corollary 3.9: alpha is not above c, so no gamma pays; decode autoregressively."
    yield _best("Section 3.5: the optimal gamma", optimal.gamma, optimal.improvement, result)


def _best(name: str, gamma: int, improvement: float, result: Forecast) -> str:
    limit = ", the largest that was considered" if gamma == result.max_gamma else ""
    return f"{name} is {gamma}{limit}, for {improvement:.3f}×."


@theory_app.command()
def divergence(
    p: Annotated[
        str, typer.Option("--p", help="Probabilities of the target, e.g. 0.5,0.3,0.2.", metavar="NUMBERS")
    ],
    q: Annotated[
        str, typer.Option("--q", help="Probabilities of the drafter for the same tokens.", metavar="NUMBERS")
    ],
    lenience: Annotated[float, typer.Option(help="Lenience l in (0, 1] (appendix A.5).")] = 1.0,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Compute how often a token drawn from q is accepted, and the distribution of the committed token.

    Prints D_LK and the acceptance rate beta (section 3.2), the effect of lenience on both the rate and the
    distribution (appendix A.5), and the acceptance rate of rejection sampling (appendix A.2).

    For example:

    ```
    specdec theory divergence --p 0.5,0.3,0.2 --q 0.6,0.3,0.1
    specdec theory divergence --p 0.5,0.3,0.2 --q 0.6,0.3,0.1 --lenience 0.5
    ```
    """
    # Imports numpy, which no other command but those with models needs.
    from specdec_core.theory import divergence as theory

    with as_config_error():
        p_x, q_x = read_numbers("--p", p, float), read_numbers("--q", q, float)
        facts = {
            "lk_divergence": float(theory.lk_divergence(p_x, q_x)),
            "acceptance_rate": float(theory.acceptance_rate(p_x, q_x)),
            "lenience": lenience,
            "lenient_acceptance_rate": float(theory.lenient_acceptance_rate(p_x, q_x, lenience)),
            "lenient_deviation": float(theory.lenient_deviation(p_x, q_x, lenience)),
            "greedy_acceptance_rate": float(theory.greedy_acceptance_rate(p_x, q_x, lenience)),
            "rejection_acceptance_rate": float(theory.rejection_acceptance_rate(p_x, q_x)),
        }
        output = [float(x) for x in theory.lenient_distribution(p_x, q_x, lenience)]
    if as_json:
        print_json({**facts, "output_distribution": output})
        return
    console = output_console(wide=wide)
    console.print(_tokens_table(p_x, q_x, lenience, output))
    for line in _divergence_lines(facts):
        console.print(Prose(line))


def _tokens_table(p: Sequence[float], q: Sequence[float], lenience: float, output: Sequence[float]) -> ReportTable:
    accepted = "min(p, q)" if lenience == 1 else f"min(p / {lenience:g}, q)"
    columns = (
        Column("token"),
        Column("p"),
        Column("q"),
        Column(f"accepted:\n{accepted}", spare=1),
        Column("residual:\nmax(0, p - q)", spare=2),
        Column("committed"),
    )
    rows = []
    for index, (p_x, q_x, out) in enumerate(zip(p, q, output, strict=True), start=1):
        numbers = (p_x, q_x, min(p_x / lenience, q_x), max(0.0, p_x - q_x), out)
        rows.append(Row((str(index), *(number(one, 4) for one in numbers))))
    return ReportTable(columns, tuple(rows))


def _divergence_lines(facts: Mapping[str, float]) -> Iterator[str]:
    yield f"D_LK(p, q) = {facts['lk_divergence']:.4g} (Definition 3.2)"
    yield f"beta = 1 - D_LK = sum min(p, q) = {facts['acceptance_rate']:.4g} (Theorem 3.5)"
    if facts["lenience"] < 1:
        yield (
            f"with lenience {facts['lenience']:g}: sum min(p / l, q) = {facts['lenient_acceptance_rate']:.4g}, "
            f"with total variation {facts['lenient_deviation']:.4g} from p (appendix A.5)"
        )
    yield f"greedy decoding accepts {facts['greedy_acceptance_rate']:.4g} of the tokens drawn from q"
    yield f"rejection sampling would accept {facts['rejection_acceptance_rate']:.4g} (appendix A.2)"
