"""The HTML of a trace, with all its steps; the script shows one at a time."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

FATES = {
    "accepted": "drafted and accepted",
    "rejected": "drafted and rejected",
    "unverified": "drafted after a rejection, never verified",
    "recovered": "sampled from the residual after a rejection",
    "bonus": "sampled from the target after a fully accepted draft",
    "forced": "the only token that the constraint allows",
}
"""What becomes of a token, and what that means."""
_NAMES = {"bonus": "the bonus token"}
_COMMITTED = ("accepted", "recovered", "bonus", "forced")
_BUTTONS = {"first": "First", "back": "Back", "forward": "Forward", "last": "Last"}


@cache
def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def style() -> str:
    """Return the style sheet of figures."""
    return _file("player.css")


def script() -> str:
    """Return the script of figures."""
    return _file("player.js")


def script_source() -> str:
    """Return the source of a content security policy that allows the script of the figure, and no other."""
    digest = hashlib.sha256(script().encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def trace_page(traces: Sequence[Mapping[str, Any]], title: str) -> str:
    """Return a page of its own with one figure for each trace."""
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {script_source()}; img-src data:"
    body = "\n".join(
        trace_figure(one, f"Prompt {n}" if len(traces) > 1 else "") for n, one in enumerate(traces, 1)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>body {{max-width: 62rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif}}
{style()}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{body}
<script>{script()}</script>
</body>
</html>
"""


def trace_html(trace: Mapping[str, Any], title: str = "") -> str:
    """Return a trace as an HTML fragment that brings its style and its script, and fits a light or dark page.

    Args:
        trace: As `TraceObserver.traces` returns it.
        title: A heading above it.
    """
    return f"<style>{style()}</style>{trace_figure(trace, title)}<script>{script()}</script>"


def trace_figure(trace: Mapping[str, Any], title: str = "") -> str:
    """Return the figure alone, for a page with `style()`, and with `script()` below its figures.

    Args:
        trace: As for `trace_html`.
        title: A heading above it.
    """
    steps = trace["steps"]
    seen = {item["fate"] for step in steps for item in step["items"]}
    legend = "".join(f'<li><span class="{one}">{one}</span> {FATES[one]}</li>' for one in FATES if one in seen)
    if _timed(steps):
        legend += '<li><span class="draft">draft</span> and <span class="verify">verify</span> time</li>'
    buttons = "".join(f'<button type="button" data-go="{go}">{name}</button>' for go, name in _BUTTONS.items())
    sections = "".join(_section(trace, number) for number in range(len(steps)))
    label = f"Trace of a decoding: {trace['tokens']} tokens in {len(steps)} steps"
    return (
        f'<figure class="specdec-trace" role="group" aria-label="{label}">'
        f"{f'<p><strong>{escape(title)}</strong></p>' if title else ''}"
        f'<p class="whole" aria-hidden="true">{"".join(_words(steps))}</p>'
        f'<div class="controls">{buttons}'
        "<small>Keys: ← → steps, ↑ ↓ tokens, Home and End.</small></div>"
        f'<p class="now" role="status" aria-live="polite"></p>{sections}{_time_line(steps)}'
        f"<figcaption><ul>{legend}</ul></figcaption></figure>"
    )


def _words(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the committed tokens of each step; a click leads to it."""
    for number, step in enumerate(steps):
        kept = [one for one in step["items"] if one["fate"] in _COMMITTED]
        tokens = "".join(f'<span class="{one["fate"]}">{_text(one["text"])}</span>' for one in kept)
        yield f'<span data-step="{number}">{tokens}</span>'


def _section(trace: Mapping[str, Any], number: int) -> str:
    """Return a step: its tokens, and for each the numbers that decided it."""
    step = trace["steps"][number]
    tokens, details = [], []
    for item in step["items"]:
        fate, text = item["fate"], _text(item["text"])
        mark = f' class="{fate}" title="{FATES[fate]}"'
        if "top" not in item:
            tokens.append(f"<span{mark}>{text}</span>")
            continue
        tokens.append(f'<button type="button"{mark} aria-pressed="false">{text}</button>')
        verdict = f"{_quoted(item)} is {_NAMES.get(fate, fate)}: {_reason(item, greedy=trace['greedy'])}."
        details.append(f'<div class="detail"><p>{escape(verdict)}</p>{_bars(item)}</div>')
    return (
        f'<section aria-label="Step {number + 1}" data-words="{escape(_summary(trace["steps"], number))}">'
        f'<div class="tokens">{"".join(tokens)}</div>{"".join(details)}</section>'
    )


def _summary(steps: Sequence[Mapping[str, Any]], number: int) -> str:
    """Return a step in words, for those who hear it."""
    items = steps[number]["items"]
    parts = [f"Step {number + 1} of {len(steps)}: {_drafted(steps[number])}"]
    for fate in FATES:
        those = [_quoted(one) for one in items if one["fate"] == fate]
        if those and fate != "unverified":
            parts.append(f"{fate} {' '.join(those)}")
    return "; ".join(parts) + "."


def _drafted(step: Mapping[str, Any]) -> str:
    """Return how many tokens a step drafted, and how long that took if it was timed."""
    count = sum(one["fate"] in ("accepted", "rejected", "unverified") for one in step["items"])
    if not _timed([step]):
        return f"{count} drafted"
    draft, verify = (f"{1000 * step[part]:.1f} ms" for part in ("draft", "verify"))
    return f"{count} drafted in {draft}, verified in {verify}"


def _timed(steps: Sequence[Mapping[str, Any]]) -> bool:
    return all("seconds" in step for step in steps)


def _quoted(item: Mapping[str, Any]) -> str:
    return f"“{shown(item['text'])}”"


def _reason(item: Mapping[str, Any], *, greedy: bool) -> str:
    """Return the numbers that decided about a token, in words."""
    drafted, r = "q" in item, item.get("r")
    if not item["algorithm_1"]:
        return "the acceptance rule decided" + (f" with p = {item['p']:.3g}" if drafted else "")
    if not drafted:
        source = "the residual norm(max(0, p − q))" if item["fate"] == "recovered" else "p"
        return "the most probable token" if greedy else f"sampled from {source} with the random number {r:.4f}"
    p, q, lenience = item["p"], item["q"], item["l"]
    kept, lenient = item["fate"] == "accepted", item["l"] < 1
    if greedy and not lenient:
        return f"it is {'' if kept else 'not '}the most probable token of the target"
    if greedy:
        largest = max(one[1] for one in item["top"])
        return f"p = {p:.3g} is {'at least' if kept else 'less than'} l max p = {lenience:.3g} × {largest:.3g}"
    name, below = ("(l q)", f"({lenience:.3g} × {q:.4g})") if lenient else ("q", f"{q:.4g}")
    return f"r = {r:.4f} {'<' if kept else '≥'} p/{name} = {p:.4g}/{below} = {p / (lenience * q):.4g}"


def _bars(item: Mapping[str, Any]) -> str:
    """Return the most probable tokens with their probabilities as bars."""
    drafted = "q" in item
    names = ["p", "q"] if drafted else ["residual" if item["fate"] == "recovered" and item["algorithm_1"] else "p"]
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    rows = []
    for text, *shares in sorted(item["top"], key=lambda one: -one[1]):
        own = ' class="own"' if text == item["text"] else ""
        cells = "".join(
            f'<td>{share:.3f} <i class="{name}" style="--share:{share:.3f}"></i></td>'
            for name, share in zip(names, shares[: len(names)], strict=True)
        )
        name = _text(text if text.strip(" ") else text.replace(" ", "␣"))
        rows.append(f'<tr{own}><th scope="row">{name}</th>{cells}</tr>')
    top = f'<thead><tr><th scope="col">token</th>{head}</tr></thead>'
    return f'<table class="bars">{top}<tbody>{"".join(rows)}</tbody></table>'


def _time_line(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the draft and the target's forward pass of each step over time; empty if they were not timed."""
    if not _timed(steps):
        return ""
    whole = max((step["begin"] + step["seconds"] for step in steps), default=0) or 1
    blocks = []
    for number, step in enumerate(steps):
        at = step["begin"]
        for name in ("draft", "verify"):
            left, width = 1000 * at / whole, 1000 * step[name] / whole
            blocks.append(
                f'<rect class="{name}" data-step="{number}" x="{left:.2f}" y="1" width="{width:.2f}" height="22"/>'
            )
            at += step[name]
    label = f"{1000 * whole:.1f} ms"
    return (
        f'<svg viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label="Time: {label}">'
        f'{"".join(blocks)}</svg><p class="scale" aria-hidden="true"><span>0</span><span>{label}</span></p>'
    )


def _text(text: str) -> str:
    return escape(shown(text))


def speller(tokenizer: Any) -> Callable[[int], str]:
    """Return a function from a token to its text within a sequence.

    SentencePiece stores the space before a word in the word's first token, and drops it when that token is decoded
    alone; the function adds it. A token without text, such as the end of a sequence, is shown by its name.

    Args:
        tokenizer: The target's tokenizer; None shows token ids.
    """

    def spell(token: int) -> str:
        if tokenizer is None:
            return f" {token}"
        text: str = tokenizer.decode([token], skip_special_tokens=True)
        name = str(tokenizer.convert_ids_to_tokens(token))
        if name.startswith("▁") and not text.startswith(" "):
            return f" {text}"
        return text or name

    return spell


def shown(text: str) -> str:
    """Return the text of a token with its line breaks and tabs as symbols."""
    return text.replace("\r", "␍").replace("\n", "⏎").replace("\t", "⇥")
