"""Generated text as HTML for notebooks: each token colored by where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from specdec_core.trace.figure import FATES

if TYPE_CHECKING:
    from specdec_core.decoding.result import Generation
    from specdec_core.interface.outcome import TokenOrigin

# Half-transparent backgrounds leave text and page to the notebook's theme, light or dark; lines serve readers who
# do not see the colors.
_STYLE = """
.specdec-tokens pre {margin: .2em 0 .6em; padding: 0; background: none; color: inherit; white-space: pre-wrap;
  overflow-wrap: anywhere; font: .875em/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace}
.specdec-tokens p {margin: .3em 0; font-size: .875em}
.specdec-tokens .accepted {background: rgba(46, 160, 67, .3)}
.specdec-tokens .recovered {background: rgba(56, 120, 253, .35); border-bottom: 2px solid rgb(56, 120, 253)}
.specdec-tokens .bonus {background: rgba(0, 150, 160, .3); border-bottom: 2px dotted rgb(0, 150, 160)}
.specdec-tokens .forced {background: rgba(190, 150, 20, .3); border-bottom: 2px dashed rgb(170, 130, 10)}
.specdec-tokens .failure {border-left: 4px solid rgb(200, 60, 50); padding-left: .5em; white-space: pre-wrap}
"""
_WINDOW = 8
"""Tokens before a token that are decoded with it: its text may depend on them."""


def results_html(
    generations: Sequence[Generation], notes: Sequence[str] = (), failures: Sequence[str] = ()
) -> str:
    """Return sequences as an HTML fragment that brings its own style and fits a light or dark page.

    Args:
        generations: The sequences; without drafts their text has no colors.
        notes: Lines below them, such as the metrics.
        failures: Lines about failures, marked as such.
    """
    drafted = any(set(one.origins) - {"bonus"} for one in generations)
    several = len(generations) > 1
    parts = []
    for index, one in enumerate(generations):
        if several:
            parts.append(f"<p>[{index}]</p>")
        text = "".join(_span(*piece) for piece in _pieces(one)) if drafted else escape(str(one))
        parts.append(f"<pre>{text}</pre>")
    if drafted:
        names = {"accepted", "recovered", "bonus", *(origin for one in generations for origin in one.origins)}
        shown = [(name, words) for name, words in FATES.items() if name in names]
        legend = [f'<span class="{name}">&nbsp;{name}&nbsp;</span> {words}' for name, words in shown]
        parts.append(f"<p>{' &ensp; '.join(legend)}</p>")
    parts += [f"<p>{escape(note)}</p>" for note in notes]
    parts += [f'<p class="failure">{escape(failure)}</p>' for failure in failures]
    return f'<div class="specdec-tokens"><style>{_STYLE}</style>{"".join(parts)}</div>'


def _span(origin: TokenOrigin, text: str) -> str:
    # A line break alone would be invisible.
    shown = text.replace("\n", "⏎\n") if text.isspace() else text
    return f'<span class="{origin}" title="{origin}">{escape(shown)}</span>'


def _pieces(one: Generation) -> Iterator[tuple[TokenOrigin, str]]:
    """Yield the text of neighboring tokens of the same origin."""
    spelled = zip(one.origins, _spelled(one), strict=True)
    for origin, group in groupby(spelled, key=lambda pair: pair[0]):
        yield origin, "".join(text for _, text in group)


def _spelled(one: Generation) -> Iterator[str]:
    """Yield the text of each token; the tokens of one character give it with the last of them."""
    if one.tokenizer is None:
        yield from (f" {token}" for token in one.tokens)
        return

    def decoded(begin: int, end: int) -> str:
        text: str = one.tokenizer.decode(list(one.tokens[begin:end]), skip_special_tokens=True)
        return text if end == len(one.tokens) else text.rstrip("�")

    for index in range(len(one.tokens)):
        begin = max(0, index - _WINDOW)
        yield decoded(begin, index + 1)[len(decoded(begin, index)) :]
