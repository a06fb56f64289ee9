"""`specdec theory`: the predictions of section 3 of the paper, its tables and its figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from specdec_core import theory
from specdec_core.cli.options.input_options import read_numbers
from specdec_core.cli.options.shared_options import (
    AsJson,
    Wide,
    as_config_error,
    error_console,
    output_console,
    print_json,
)
from specdec_core.cli.theory.gpu import gpu
from specdec_core.cli.theory.speed import speed
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.files import check_output, writing_file
from specdec_core.study.report.formats import UNKNOWN, number
from specdec_core.study.report.layout import Column, Prose, ReportTable, Row, for_terminal
from specdec_core.theory.paper.tables import TABLES, Cell, PaperTable

theory_app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")


@theory_app.callback()
def _about() -> None:
    """Predict speed-ups with section 3 of the paper, and reproduce its tables and figures.

    Sections, equations and theorems are those of arXiv 2211.17192. No model is loaded.

    For example:

    ```
    specdec theory speed --alpha 0.62 --c 0.02
    specdec theory table 4
    ```
    """


theory_app.command()(speed)
theory_app.command()(gpu)


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
    console.print(for_terminal(_tokens_table(p_x, q_x, lenience, output)))
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


@theory_app.command()
def table(
    number: Annotated[int, typer.Argument(help="1, 4 or 5.", metavar="NUMBER")],
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Print a table of the paper next to the values of the formulas.

    1: operations and speed by alpha and gamma. 4: expected and measured improvement. 5: alpha with lenience, and
    the improvements from the text.

    For example:

    ```
    specdec theory table 4
    ```
    """
    if number not in TABLES:
        raise ConfigError(f"table {number} does not exist; available: {', '.join(map(str, TABLES))}.")
    found = TABLES[number]()
    if as_json:
        print_json([dict(zip(found.columns, row, strict=True)) for row in found.rows])
        return
    output_console(wide=wide).print(for_terminal(_paper_table(found)))


_SPARE = {"min": 1, "max": 1, "same digit": 2, "M_q": 3, "unigram": 2, "bigram": 1}
"""Columns that a narrow terminal can do without."""


def _paper_table(found: PaperTable) -> ReportTable:
    columns = tuple(
        Column(heading.replace(" ", "\n"), numeric=spec != "", spare=_SPARE.get(heading, 0))
        for heading, spec in found.columns.items()
    )
    rows = (Row(tuple(map(_cell, row, found.columns.values()))) for row in found.rows)
    return ReportTable(columns, tuple(rows), found.notes, found.title, unknown="not in the paper")


def _cell(value: Cell, spec: str) -> str:
    return UNKNOWN if value is None else format(value, spec)


@theory_app.command()
def figure(
    number: Annotated[int, typer.Argument(help="2, 3 or 4.", metavar="NUMBER")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .svg or .png.", metavar="FILE")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Draw a figure of the paper. Needs matplotlib, from the extra `report`.

    2: expected tokens by alpha. 3: the optimal gamma by alpha. 4: speed and operations by alpha.

    For example:

    ```
    specdec theory figure 2 --output figure-2.svg
    ```
    """
    from specdec_core.theory.paper.figures import check_figure, draw_figure

    check_figure(number, output)
    check_output(output, overwrite)
    with writing_file(output) as temporary:
        draw_figure(number, temporary)
    error_console().print(f"written: {output}", soft_wrap=True)
