"""Printed outputs on the site: tables of text as HTML tables, and traces with a box around each token.

The Markdown of a page keeps an output as the terminal shows it. A terminal is as wide as it needs to be; a table
of HTML fits the page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

_BLOCK = re.compile(
    r'<div class="(?P<kind>language-text highlight)"><pre>(?:<span></span>)?'
    r"<code>(?P<text>.*?)</code></pre></div>",
    re.DOTALL,
)
_COMMAND = re.compile(r'<div class="language-sh highlight">.*?</div>', re.DOTALL)
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_WHOLE = r'<span class="option">\g<0></span>'
_KEYWORD = ('<span class="nb">export</span>', "export")
"""In a command, `specdec export` is not the shell's own."""
_RULE = re.compile(r" ─{5,}")
_DRAWN = re.compile("[│▼↑]")
_FATES = {"+": "accepted", "-": "rejected", "!": "recovered", "*": "bonus", "=": "forced"}
_STEP = re.compile(r"(?P<counts> *\d+  \d+/\d+(?: of \d+)?  )(?P<tokens>\[[-+!*=].*\])")
_LEGEND = re.compile(rf"\[(?P<mark>[-+!*=])(?P<fate>{'|'.join(_FATES.values())})\] (?P<meaning>.*)")
# A token may contain brackets; it ends before another token or the end of the line.
_TOKEN = re.compile(r"\[([-+!*=])((?:(?!\[[-+!*=]).)*?)\](?=\[[-+!*=]|$)")
_NUMBER = re.compile(r"[~+-]?\d.*|–|\s*")


def shown(page: str) -> str:
    """Return the HTML of a page with its outputs as a reader should see them, and options that stay whole."""
    return _BLOCK.sub(_block, _COMMAND.sub(lambda at: _OPTION.sub(_WHOLE, at[0].replace(*_KEYWORD)), page))


def _block(found: re.Match[str]) -> str:
    lines = html.unescape(re.sub(r"</?span[^>]*>", "", found["text"])).rstrip("\n").split("\n")
    if any(map(_RULE.fullmatch, lines)):
        return _with_tables(lines)
    if any(map(_LEGEND.fullmatch, lines)):
        return _pre("".join(map(_trace_line, lines)), f"{found['kind']} trace")
    if any(map(_DRAWN.search, lines)):
        return found[0].replace(found["kind"], f"{found['kind']} drawing", 1)
    return found[0]


def _pre(content: str, kind: str = "language-text highlight") -> str:
    return f'<div class="{kind}"><pre><code>{content}</code></pre></div>'


def _with_tables(lines: Sequence[str]) -> str:
    """Return an output in which paragraphs with a rule are tables."""
    parts, texts = [], []
    paragraphs = [part.split("\n") for part in re.split(r"\n\n+", "\n".join(lines))]
    for paragraph in [*paragraphs, None]:
        rule = next((n for n, line in enumerate(paragraph or ()) if _RULE.fullmatch(line)), None)
        if paragraph is not None and rule is None:
            texts.append("\n".join(paragraph))
            continue
        if texts:
            parts.append(_pre(html.escape("\n\n".join(texts) + "\n", quote=False)))
        texts = []
        if paragraph is not None:
            parts.append(table(paragraph[:rule], paragraph[rule + 1 :]))
    return f'<div class="output">{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table that was printed with at least two spaces between its columns, as HTML.

    Args:
        head: The lines above the rule; a column's name may take several.
        rows: The lines below it.
    """
    spans = _columns([*head, *rows])
    names = [" ".join(part for line in head if (part := line[slice(*span)].strip())) for span in spans]
    cells = [[line[slice(*span)].strip() for span in spans] for line in rows]
    right = [_on_the_right(*([line[slice(*span)] for line in part] for part in (head, rows))) for span in spans]

    def row(tag: str, texts: Sequence[str]) -> str:
        styles = [' style="text-align: right;"' if one else "" for one in right]
        return "".join(
            f"<{tag}{style}>{html.escape(text, quote=False)}</{tag}>"
            for text, style in zip(texts, styles, strict=True)
        )

    body = "".join(f"<tr>{row('td', one)}</tr>" for one in cells)
    return f"<table><thead><tr>{row('th', names)}</tr></thead><tbody>{body}</tbody></table>"


def _columns(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Return where each column begins and ends: between two or more positions that are blank in every line."""
    width = max(map(len, lines))
    marks = "".join(" " if all(line[n : n + 1].strip() == "" for line in lines) else "x" for n in range(width))
    return [found.span() for found in re.finditer(r"x+(?: x+)*", marks)]


def _on_the_right(head: Sequence[str], rows: Sequence[str]) -> bool:
    """Return whether a column is printed on the right: its texts end together, and begin apart or are numbers."""
    width = max(map(len, (*head, *rows)))
    filled = [cell.ljust(width) for cell in (*head, *rows) if cell.strip()]
    if any(cell[-1] == " " for cell in filled):
        return False
    return any(cell[0] == " " for cell in filled) or all(map(_NUMBER.fullmatch, rows))


def _trace_line(line: str) -> str:
    if found := _STEP.fullmatch(line):
        return f'<span class="step">{found["counts"]}{_TOKEN.sub(_token, found["tokens"])}\n</span>'
    if found := _LEGEND.fullmatch(line):
        return f"{_boxed(found['mark'], found['fate'])} {found['meaning']}\n"
    return html.escape(line, quote=False) + "\n"


def _token(found: re.Match[str]) -> str:
    return _boxed(found[1], found[2])


def _boxed(mark: str, text: str) -> str:
    return f'<span class="trace-{_FATES[mark]}">{html.escape(text, quote=False)}</span>'
