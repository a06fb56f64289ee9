"""Markup in names and texts: pages have the elements and attributes that harmless names give, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from specdec_core.decoding import BatchResult, Generation, Metrics, PluginFailure
from specdec_core.study.config.prompts import PromptText
from specdec_core.study.progress import NotebookProgress
from specdec_core.study.report.html.html_report import report_fragment, report_page
from tests.robustness.attack import BrokenError
from tests.robustness.terminals import RAW
from tests.study.summaries import QUALITY, baseline, output, run

_PIECES = (
    *("<script>alert(1)</script>", "</style>", "</title>", "</pre>", "</svg>", "<img src=x onerror=alert(1)>"),
    *('"onmouseover="alert(1)', "'onfocus='alert(1)", " autofocus ", "javascript:alert(1)", "data:text/html,x"),
    *("<!--", "-->", "<![CDATA[", "]]>", "<?php", "<!DOCTYPE x>", "&lt;b&gt;", "&#60;b>", "&", "<", ">", "`", "="),
    *("\u2028", "\u2029", "\u202e", "\u2066", "\u200f", "\x00", "\x1b[31m", "\x85", "\ud800", "\ufeff", "\uffff"),
    *("{{ 1 }}", "${1}", "[bold]", "\\", "%s", "שם", "x", "/"),
)


def pages(random: Random, _: Path) -> Iterator[str]:
    """Faulty texts in everything that the report and notebooks show."""
    text = "".join(random.choices(_PIECES, k=random.randint(1, 5)))
    kind = random.choice([_report, _fragment, _generation, _progress])
    where = random.choice(sorted(_HOLDERS)) if kind in (_report, _fragment) else ""
    yield f"{kind.__name__[1:]} {where} {text!r}"
    try:
        made = kind(text, where)
        made.encode()
    except UnicodeError as error:
        if kind is _report:  # a file; a notebook replaces what it cannot show
            raise BrokenError(f"it cannot be written: {error}") from error
        made = made.encode("utf-8", "replace").decode()
    wanted, found = _elements(kind("x" * len(text), where)), _elements(made)
    if wanted != found:
        raise BrokenError(f"{len(found)} elements where {len(wanted)} were expected: {_first(wanted, found)}")
    if kind is _report and (raw := RAW.search(made)):
        raise BrokenError(f"{raw[0]!r} in the page")


def _report(text: str, where: str) -> str:
    given = {name: text if where == name else "word" for name in _HOLDERS}
    task, name = given["task"], given["name"]
    prompts = [
        PromptText(given["id"], given["prompt"], None, (given["reference"],), given["source"]),
        PromptText("chat", None, ({"role": given["role"], "content": given["content"]},)),
    ]
    outputs = {
        (task, "baseline"): [output("abc")],
        (task, f"run {name}"): [output(given["output"], 6)],
    }
    return report_page(given["study"], _rows(given), outputs, {task: prompts})


def _fragment(text: str, where: str) -> str:
    given = {name: text if where == name else "word" for name in _HOLDERS}
    return report_fragment(given["study"], _rows(given))


def _rows(given: dict[str, str]) -> list[Any]:
    failure = {
        "plugin": given["plugin"],
        "step": 0,
        "message": given["message"],
        "where": given["where"],
        "times": 1,
    }
    told = {
        "diagnosis": given["diagnosis"],
        "quality": {**QUALITY, "note": given["note"]},
        "failures": (failure,),
        "drafter": given["drafter"],
        "device": given["device"],
        "versions": {f"v {given['distribution']}": given["version"]},
    }
    task = given["task"]
    return [
        baseline(task=task, device=given["device"]),
        run(f"run {given['name']}", task=task, **told),
        run("gone", task=task, error=given["error"]),
    ]


_HOLDERS = (
    *("study", "task", "name", "id", "prompt", "reference", "source", "role", "content", "output", "plugin"),
    *("message", "where", "diagnosis", "note", "drafter", "device", "distribution", "version", "error"),
)
"""Parts of a report that may hold the text."""


def _generation(text: str, _: str) -> str:
    tokenizer = SimpleNamespace(decode=lambda ids, **_: text[: len(ids) * (len(text) // 3 + 1)])
    origins = ("accepted", "bonus", "recovered")
    one = Generation((3,), (1, 2, 3), text, "length", origins, tokenizer)
    failure = PluginFailure(f"P {text}", 0, text)
    return str(BatchResult((one, one), Metrics(), (failure,))._repr_html_())


def _progress(text: str, _: str) -> str:
    shown: list[Any] = []
    progress = NotebookProgress.__new__(NotebookProgress)
    progress._shown = SimpleNamespace(update=shown.append)
    progress.stage(text, 3)
    progress.advance(1, text)
    return str(shown[-1]._repr_html_())


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attributes)))
        for name, value in attributes:
            if name in ("href", "src", "xlink:href") and not str(value).startswith(("#", "data:,")):
                self.found.append((tag, (f"{name}={value}",)))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}", ()))

    def handle_comment(self, data: str) -> None:
        self.found.append((f"!--{data}", ()))

    def handle_decl(self, decl: str) -> None:
        self.found.append((f"!{decl}", ()))

    def handle_pi(self, data: str) -> None:
        self.found.append((f"?{data}", ()))

    def unknown_decl(self, data: str) -> None:
        self.found.append((f"![{data}", ()))


def _elements(page: str) -> list[tuple[str, tuple[str, ...]]]:
    parser = _Elements()
    parser.feed(page)
    parser.close()
    return parser.found


def _first(wanted: list[Any], found: list[Any]) -> str:
    pairs = zip([*wanted, None], [*found, None], strict=False)
    return next(f"{one!r}, and there is {other!r}" for one, other in pairs if one != other)[:200]
