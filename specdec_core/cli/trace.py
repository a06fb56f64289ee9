"""The trace of Figure 1: one line a step, each token coloured by what became of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.text import Text

from specdec_core.border import StepReport

if TYPE_CHECKING:
    from specdec_core.decoding import BatchResult

Fate = Literal["accepted", "rejected", "recovered", "bonus"]


@dataclass(frozen=True)
class _Look:
    style: str
    mark: str
    meaning: str


_LOOKS: dict[Fate, _Look] = {
    "accepted": _Look("green", "+", "accepted: drafted, and kept"),
    "rejected": _Look("red strike", "-", "rejected: drafted, and refused"),
    "recovered": _Look("blue", "!", "recovered: drawn in place of the rejected one"),
    "bonus": _Look("cyan", "*", "bonus: drawn by the target after a draft that was kept whole"),
}


def fates(report: StepReport, row: int = 0) -> Iterator[tuple[int, Fate]]:
    """Yield the tokens of a step in the order of Figure 1, each with what became of it.

    What was drafted behind a rejected token was never judged and is left out.

    Args:
        report: The step.
        row: The sequence.
    """
    draft, kept, committed = report.draft_tokens[row], report.accepted[row], report.committed[row]
    for token in committed[:kept]:
        yield token, "accepted"
    # A sequence that ended inside its draft has no further token.
    for token in committed[kept:]:
        if kept < len(draft):
            yield draft[kept], "rejected"
            yield token, "recovered"
        else:
            yield token, "bonus"


def speller(tokenizer: Any) -> Callable[[int], str]:
    """Return what turns a token into the text that it stands for in the middle of others.

    Args:
        tokenizer: The target's; None spells token ids. SentencePiece keeps the space before a word in the word's
            first token, and leaves it out where that token begins a text, as it does when it is decoded by itself.
    """

    def spell(token: int) -> str:
        if tokenizer is None:
            return f" {token}"
        text: str = tokenizer.decode([token], skip_special_tokens=True)
        begins_word = str(tokenizer.convert_ids_to_tokens(token)).startswith("▁")
        return f" {text}" if begins_word and not text.startswith(" ") else text

    return spell


class TraceView:
    """Prints steps, a legend and the closing counts.

    Args:
        console: Where to; without colours, marks say what they would have said.
        spell: Turns a token into text.
    """

    def __init__(self, console: Console, spell: Callable[[int], str]) -> None:
        self._console = console
        self._spell = spell
        self._marks = console.color_system is None or console.no_color

    def step(self, report: StepReport) -> None:
        """Print the line of a step: its number, tokens kept of those drafted, and the tokens."""
        line = Text().append(f"{report.step + 1:4d}  {report.accepted[0]}/{report.drafted[0]}  ", style="dim")
        for token, fate in fates(report):
            line.append_text(self._token(self._spell(token), fate))
        self._console.print(line, soft_wrap=True)

    def close(self, result: "BatchResult") -> None:
        """Print the legend and what the generation came to."""
        self._console.print()
        for fate, look in _LOOKS.items():
            self._console.print(self._token(fate, fate), Text(look.meaning.partition(": ")[2]))
        metrics = result.metrics
        alpha = "none judged" if metrics.alpha is None else f"{metrics.alpha:.2f}"
        self._console.print(
            f"\n{metrics.tokens} tokens with {metrics.target_calls} target calls "
            f"({metrics.block_efficiency:.2f} a call), alpha {alpha}, {metrics.tokens_per_second:.1f} tokens/s, "
            f"ended by {result.rows[0].finish_reason}.",
            markup=False,
            soft_wrap=True,
        )

    def _token(self, text: str, fate: Fate) -> Text:
        look = _LOOKS[fate]
        shown = text.replace("\r", "␍").replace("\n", "⏎").replace("\t", "⇥")
        return Text(f"[{look.mark}{shown}]") if self._marks else Text(shown, style=look.style)
