"""The HTML of a trace, with all its steps; the script shows one at a time."""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

FATES = {
    "accepted": "drafted and accepted",
    "rejected": "drafted and rejected",
    "unverified": "drafted after a rejection, never verified",
    "recovered": "sampled from the residual after a rejection",
    "bonus": "sampled from the target after a fully accepted draft",
    "forced": "the only token that the constraint allows",
}
"""What becomes of a token, and what that means."""


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
    names = [f"Prompt {number}" if len(traces) > 1 else "" for number in range(1, len(traces) + 1)]
    page = _environment().get_template("page.html.jinja")
    figures = map(trace_figure, traces, names)
    return page.render(title=title, source=script_source(), style=style(), script=script(), figures=figures)


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
    timed = _timed(steps)
    template = _environment().get_template("figure.html.jinja")
    return template.render(
        trace=trace,
        title=title,
        steps=steps,
        seen={item["fate"] for step in steps for item in step["items"]},
        fates=FATES,
        committed=("accepted", "recovered", "bonus", "forced"),
        summaries=[_summary(steps, number) for number in range(len(steps))],
        whole=timed and (max((step["begin"] + step["seconds"] for step in steps), default=0) or 1),
    )


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # decoding without a figure does not need it

    environment = Environment(
        loader=PackageLoader("specdec_core.trace"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"shown": shown, "verdict": _verdict, "ms": _milliseconds}
    return environment


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
    return f"{count} drafted in {_milliseconds(step['draft'])}, verified in {_milliseconds(step['verify'])}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _timed(steps: Sequence[Mapping[str, Any]]) -> bool:
    return all("seconds" in step for step in steps)


def _quoted(item: Mapping[str, Any]) -> str:
    return f"“{shown(item['text'])}”"


def _verdict(item: Mapping[str, Any], greedy: bool) -> str:
    """Return what became of a token, with the numbers that decided about it."""
    fate = "the bonus token" if item["fate"] == "bonus" else item["fate"]
    return f"{_quoted(item)} is {fate}: {_reason(item, greedy=greedy)}."


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
