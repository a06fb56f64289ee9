"""`specdec theory`: what section 3 of the paper expects, and its tables and figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from specdec_core import theory
from specdec_core.cli.console import error_console, output_console
from specdec_core.cli.theory.parts import AsJson, mendable, print_json
from specdec_core.cli.theory.speed import speed
from specdec_core.errors import ConfigError
from specdec_core.output import check_output, writing_file
from specdec_core.theory.tables import TABLES

theory_app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")


@theory_app.callback()
def _about() -> None:
    """Say what theory expects: section 3 of the paper, its tables and its figures.

    Sections, equations and theorems are those of arXiv 2211.17192. No model is loaded.

    For example:

    ```
    specdec theory speed --alpha 0.62 --c 0.02
    specdec theory divergence --p 0.5,0.3,0.2 --q 0.6,0.3,0.1
    specdec theory table 4
    specdec theory figure 2 --output figure-2.svg
    ```
    """


theory_app.command()(speed)


@theory_app.command()
def divergence(
    p: Annotated[str, typer.Option("--p", help="The target's probabilities: 0.5,0.3,0.2.", metavar="NUMBERS")],
    q: Annotated[str, typer.Option("--q", help="The drafter's, of the same tokens.", metavar="NUMBERS")],
    lenience: Annotated[float, typer.Option(help="l of appendix A.5, above 0 and at most 1.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Say how often a token drawn from q is accepted for p, and what comes out.

    D_LK and the acceptance rate beta (section 3.2), what lenience adds to it and how far that leads from p
    (appendix A.5), and what rejection sampling would accept (appendix A.2).

    For example:

    ```
    specdec theory divergence --p 0.5,0.3,0.2 --q 0.6,0.3,0.1
    specdec theory divergence --p 0.5,0.3,0.2 --q 0.6,0.3,0.1 --lenience 0.5
    ```
    """
    with mendable():
        p_x, q_x = _numbers("--p", p), _numbers("--q", q)
        facts = {
            "lk_divergence": float(theory.lk_divergence(p_x, q_x)),
            "acceptance_rate": float(theory.acceptance_rate(p_x, q_x)),
            "lenience": lenience,
            "lenient_acceptance_rate": float(theory.lenient_acceptance_rate(p_x, q_x, lenience)),
            "lenient_deviation": float(theory.lenient_deviation(p_x, q_x, lenience)),
            "argmax_acceptance_rate": float(theory.argmax_acceptance_rate(p_x, q_x, lenience)),
            "rejection_acceptance_rate": float(theory.rejection_acceptance_rate(p_x, q_x)),
        }
        output = [float(x) for x in theory.lenient_distribution(p_x, q_x, lenience)]
    if as_json:
        print_json({**facts, "output_distribution": output})
        return
    console = output_console()
    console.print(_tokens_table(p_x, q_x, lenience, output))
    for line in _divergence_lines(facts):
        console.print(line, markup=False, soft_wrap=True)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"{option} holds numbers with commas between them, such as 0.5,0.3,0.2; {error}."
        ) from None


def _tokens_table(p: Sequence[float], q: Sequence[float], lenience: float, output: Sequence[float]) -> Table:
    table = Table(header_style="bold")
    kept = "min(p, q)" if lenience == 1 else f"min(p / {lenience:g}, q)"
    for heading in ("token", "p", "q", f"drafted and kept: {kept}", "left for a recovered one: max(0, p - q)"):
        table.add_column(heading, justify="right")
    table.add_column("comes out", justify="right")
    for index, (p_x, q_x, out) in enumerate(zip(p, q, output, strict=True), start=1):
        numbers = (p_x, q_x, min(p_x / lenience, q_x), max(0.0, p_x - q_x), out)
        table.add_row(str(index), *(f"{number:.4f}" for number in numbers))
    return table


def _divergence_lines(facts: Mapping[str, float]) -> Iterator[str]:
    yield f"D_LK(p, q) = {facts['lk_divergence']:.4f} (Definition 3.2)"
    yield f"beta = 1 - D_LK = sum min(p, q) = {facts['acceptance_rate']:.4f} (Theorem 3.5)"
    if facts["lenience"] < 1:
        yield (
            f"with lenience {facts['lenience']:g}: sum min(p / l, q) = {facts['lenient_acceptance_rate']:.4f}, "
            f"at a total variation from p of {facts['lenient_deviation']:.4f} (appendix A.5)"
        )
    yield f"if decoding takes the argmax of p: {facts['argmax_acceptance_rate']:.4f} of what q draws is kept"
    yield f"rejection sampling would accept {facts['rejection_acceptance_rate']:.4f} (appendix A.2)"


@theory_app.command()
def table(
    number: Annotated[int, typer.Argument(help="1, 4 or 5.", metavar="NUMBER")],
    as_json: AsJson = False,
) -> None:
    """Print a table of the paper beside what the formulas give.

    1: operations and speed for alpha and gamma. 4: expected and measured improvement, from alpha, c and gamma.
    5: alpha with lenience, and the improvement that the text names.

    For example:

    ```
    specdec theory table 4
    ```
    """
    if number not in TABLES:
        raise ConfigError(f"there is no table {number} here; available: {', '.join(map(str, TABLES))}.")
    found = TABLES[number]()
    if as_json:
        print_json([dict(zip(found.columns, row, strict=True)) for row in found.rows])
        return
    shown = Table(header_style="bold", title=Text(found.title), title_justify="left")
    for heading in found.columns:
        shown.add_column(heading)
    for row in found.rows:
        shown.add_row(*map(_cell, row, found.columns.values()))
    console = output_console()
    console.print(shown)
    for note in found.notes:
        console.print(note, markup=False, soft_wrap=True)


def _cell(value: object, spec: str) -> Text:
    return Text("–" if value is None else format(value, spec))


@theory_app.command()
def figure(
    number: Annotated[int, typer.Argument(help="2, 3 or 4.", metavar="NUMBER")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to draw: .svg or .png.", metavar="FILE")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
) -> None:
    """Draw a figure of the paper. Needs matplotlib, of the extra `report`.

    2: expected tokens over alpha. 3: the optimal gamma over alpha. 4: speed and operations over alpha.

    For example:

    ```
    specdec theory figure 2 --output figure-2.svg
    ```
    """
    from specdec_core.theory.figures import check_figure, draw_figure

    check_figure(number, output)
    check_output(output, overwrite)
    with writing_file(output) as place:
        draw_figure(number, place)
    error_console().print(f"written: {output}", markup=False, soft_wrap=True)
