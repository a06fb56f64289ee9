"""Check the English of pages, docstrings and messages: python docs/prose.py [PAGE ...].

Each rule is a pattern that finds what the style of this project avoids. (Vale has such rules, but its packages
fetch a program from a host that CI does not reach.) Prints `FILE:LINE: FOUND: ADVICE`, and exits with 1 if there
is any. Without pages it checks all of them, and the sources.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if not {"assets", "examples"} & set(path.relative_to(ROOT).parts)
)
SOURCES = ("specdec_core", "drafters", "plugins", "models/specdec_models")

_STEMS = (
    "normal|initial|optim|summar|recogn|standard|general|penal|maxim|minim|organ|memor|random|serial|token|visual"
)
_NAMES = "specdec|lm-evaluation-harness|transformers|vLLM|llama|gpt-fast|torch|pytest"
_BLOCK = "\N{WHITE SQUARE}"
SPELLING = "American spelling"
REFUSE = "'rejects' or 'raises'"
NO = "'is not a ...'"
LAW = "'distribution'"
WHAT = "name the thing instead of 'What ...'"
START = "a paragraph begins with its subject, not as the predicate of a heading or a code block"
_RULES = {
    rf"\b(?:\w*(?:{_STEMS})is(?:e|es|ed|ing|er|ers|ation|ations)|(?:de|re)?quantis\w+)\b": SPELLING,
    r"\b\w*(?:colour|behaviour|favour|neighbour|catalogue)\w*\b": SPELLING,
    r"\bgreys?\b|\b(?:label|model|cancel)l(?:ed|ing)\b|\bcentres?\b": SPELLING,
    r"\b[Rr]efus(?:e|es|ed|ing|al|als)\b": REFUSE,
    r"(?<!there )(?<!There )\b(?:is|are|was|were) no (?!longer|more\b|less\b|fewer\b|better\b)\w+": NO,
    r"(?<!'s )\blaws?\b": LAW,
}
_PAGE_RULES = {
    r"(?:(?<=[.!:] )|^)What (?:[\w,'`-]+\s)+?[\w`]+\.": WHAT,
    rf"(?:^{_BLOCK}|^#+ [^\n]+)\n+(?!(?:{_NAMES})\b)[a-z]\w*": START,
}


class Found(NamedTuple):
    """A place that a rule finds."""

    file: str
    line: int
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text!r}: {self.advice}"


def prose(page: str) -> str:
    """Return the text of a page, as many lines, without code, comments, addresses and HTML."""

    def emptied(found: re.Match[str], mark: str = "") -> str:
        return mark + "\n" * found[0].count("\n")

    fence = re.compile(r"^ *```.*?^ *```$|^::: .*?$", re.DOTALL | re.MULTILINE)
    page = re.sub(r"<!--.*?-->", emptied, fence.sub(lambda found: emptied(found, _BLOCK), page), flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`", "`x`", re.sub(r"\]\([^)\s]+\)", "]", page))


def in_page(name: str, text: str) -> Iterator[Found]:
    """Yield the finds in a page."""
    cleaned = prose(text)
    for pattern, advice in {**_RULES, **_PAGE_RULES}.items():
        for found in re.finditer(pattern, cleaned, re.MULTILINE):
            shown = found[0].rpartition("\n")[2] if advice == START else " ".join(found[0].split())
            yield Found(name, cleaned.count("\n", 0, found.end()) + 1, shown, advice)


def in_source(name: str, text: str) -> Iterator[Found]:
    """Yield the finds in the docstrings and messages of a module: its strings of several words."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            words = re.sub(r"`[^`\n]*`", "`x`", node.value)
            for pattern, advice in _RULES.items():
                for found in re.finditer(pattern, words):
                    yield Found(name, node.lineno + words.count("\n", 0, found.start()), found[0], advice)


def pages() -> list[Found]:
    """Return the finds in all pages."""
    names = {page.relative_to(ROOT).as_posix(): page for page in PAGES}
    return [one for name, page in names.items() for one in in_page(name, page.read_text(encoding="utf-8"))]


def sources() -> list[Found]:
    """Return the finds in all sources."""
    paths = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    return [
        one
        for path in paths
        for one in in_source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]


def main() -> None:
    """Print what is found."""
    if sys.argv[1:]:
        found = [one for page in sys.argv[1:] for one in in_page(page, Path(page).read_text(encoding="utf-8"))]
    else:
        found = [*pages(), *sources()]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
