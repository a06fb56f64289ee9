"""The trace of Figure 1: one line per step, each token colored by whether it was accepted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from rich.console import Console
from rich.text import Text

from specdec_core.interface import StepReport
from specdec_core.interface.outcome import TokenOrigin
from specdec_core.study.report.formats import visible
from specdec_core.trace.figure import shown

if TYPE_CHECKING:
    from specdec_core.decoding.result import BatchResult

Fate: TypeAlias = TokenOrigin | Literal["rejected"]


@dataclass(frozen=True)
class _Look:
    style: str
    mark: str
    meaning: str


_LOOKS: dict[Fate, _Look] = {
    "accepted": _Look("green", "+", "accepted: drafted and accepted"),
    "rejected": _Look("red strike", "-", "rejected: drafted and rejected"),
    "recovered": _Look("blue", "!", "recovered: sampled from the residual after a rejection"),
    "bonus": _Look("cyan", "*", "bonus: sampled from the target after a fully accepted draft"),
    "forced": _Look("yellow", "=", "forced: the only token that the constraint allows"),
}


def fates(report: StepReport, row: int = 0) -> Iterator[tuple[int, Fate]]:
    """Yield the tokens of a step in the order of Figure 1, each with its fate.

    Tokens drafted after a rejected one were never verified and are left out. Where a tree is left, all tokens that
    were drafted there are rejected ones.

    Args:
        report: The step.
        row: The sequence.
    """
    for token, origin in zip(report.outcome.committed[row], report.origins[row], strict=True):
        if origin == "recovered":
            yield from ((other, "rejected") for other in report.rejected_tokens[row])
        yield token, origin


class TraceView:
    """Prints the steps, a legend and a summary.

    Args:
        console: Where to print; marks replace colors on a console without them.
        spell: Returns the text of a token.
    """

    def __init__(self, console: Console, spell: Callable[[int], str]) -> None:
        self._console = console
        self._spell = spell
        self._marks = console.color_system is None or console.no_color

    def step(self, report: StepReport) -> None:
        """Print the line of a step: its number, accepted/drafted tokens, and the tokens.

        Of a tree, these are the accepted tokens, the longest path, and the tokens of all paths.
        """
        outcome = report.outcome
        counts = f"{outcome.accepted[0]}/{outcome.depths[0]}"
        if outcome.parents is not None:
            counts += f" of {outcome.drafted[0]}"
        line = Text().append(f"{report.step + 1:4d}  {counts}  ", style="dim")
        for token, fate in fates(report):
            line.append_text(self._token(self._spell(token), fate))
        self._console.print(line, soft_wrap=True)

    def close(self, result: "BatchResult") -> None:
        """Print the legend and a summary."""
        self._console.print()
        for fate, look in _LOOKS.items():
            if fate == "forced" and not result.metrics.forced:
                continue
            self._console.print(self._token(fate, fate), Text(look.meaning.partition(": ")[2]))
        ended = f"ended by {result.sequences[0].finish_reason}"
        self._console.print(f"\n{result.metrics}, {ended}.", soft_wrap=True)

    def _token(self, text: str, fate: Fate) -> Text:
        look = _LOOKS[fate]
        safe = visible(shown(text))
        return Text(f"[{look.mark}{safe}]") if self._marks else Text(safe, style=look.style)
