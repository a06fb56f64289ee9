"""Make (text, first sentence) pairs from CPython's HTML documentation.

The pages come from Debian's `python3.11-doc`, which is unpacked but not installed, and are under CPython's licence
(PSF-2.0). Two kinds:

- descriptions of functions, classes, methods and C functions: the first sentence, and the rest;
- sections: the title, and the section's own paragraphs.

Pages of held-out modules, the lists of changes, and the language reference, which `docstrings` reads from
`pydoc_data`, are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from recipes.builtin_pair.corpus import HELD_OUT
from recipes.builtin_t5.docstrings import Summary, cut, usable
from recipes.builtin_t5.programs import Package, fetch, members

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = Package("debian", "python3.11-doc", "3.11.2-6+deb12u9")
PAGES = re.compile(r".*/html/((?:library|c-api|faq|howto|tutorial|extending|distributing|using)/[\w.-]+)\.html")

# Pages of held-out modules whose name differs from the module's.
HELD_OUT_PAGES = {"asyncio-sync", "concurrent.futures", "json", "multiprocessing", "unittest", "wsgiref"}
HELD_OUT_PAGES |= {"xml.sax.utils"} | {name.removesuffix(".py").replace("/", ".") for name in HELD_OUT}

VOID = {"br", "hr", "img", "input", "link", "meta", "col", "area", "base", "embed", "source", "wbr"}
HEADINGS = ("h1", "h2", "h3", "h4")
BLOCKS = ("p", "pre", "ul", "ol")


@dataclass
class Node:
    """An HTML element with its children in order; text is a plain string."""

    tag: str
    attributes: dict[str, str]
    children: list[Node | str] = field(default_factory=list)

    def elements(self) -> Iterator[Node]:
        """Yield the child elements."""
        return (child for child in self.children if isinstance(child, Node))

    def text(self) -> str:
        """Return the text of all descendants, without permalink signs."""
        if "headerlink" in self.attributes.get("class", ""):
            return ""
        return "".join(child if isinstance(child, str) else child.text() for child in self.children)

    def walk(self) -> Iterator[Node]:
        """Yield this element and all its descendants."""
        yield self
        for child in self.elements():
            yield from child.walk()


class TreeBuilder(HTMLParser):
    """Builds a tree of `Node` from a page. An end tag closes everything up to its start tag."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Node("document", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element."""
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        """Close the nearest open element of that name, if there is one."""
        names = [node.tag for node in self.open]
        if tag in names[1:]:
            del self.open[len(names) - 1 - names[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        """Append text."""
        self.open[-1].children.append(data)


def paragraphs(node: Node) -> list[str]:
    """Return the paragraphs, lists and examples that are children of an element."""
    found = []
    for child in node.elements():
        if child.tag in ("ul", "ol"):
            items = (" ".join(item.text().split()) for item in child.elements())
            found.append("\n".join(f"- {item}" for item in items))
        elif child.tag == "p":
            found.append(" ".join(child.text().split()))
        elif child.tag == "div" and "highlight" in child.attributes.get("class", ""):
            code = child.text().strip("\n").splitlines()
            found.append("\n".join(f"   {line}".rstrip() for line in code))
    return [text for text in found if text.strip()]


def first_sentence(text: str) -> tuple[str, str]:
    """Split a paragraph after its first sentence."""
    match = re.match(r"(.+?(?<!e\.g)(?<!i\.e)(?<!etc)(?<! vs)[.!?])\s+(?=[A-Z(*\"“])(.*)", text, re.DOTALL)
    return (match[1], match[2]) if match else (text, "")


def of_page(content: str, page: str) -> Iterator[Summary]:
    """Yield the pairs of one page."""
    builder = TreeBuilder()
    builder.feed(content)
    for node in builder.root.walk():
        if node.tag == "dl" and node.attributes.get("class", "").split(" ")[0] in ("py", "c"):
            names = [child.attributes.get("id", "") for child in node.elements() if child.tag == "dt"]
            for description in (child for child in node.elements() if child.tag == "dd"):
                texts = paragraphs(description)
                if texts:
                    summary, rest = first_sentence(texts[0])
                    yield from _pair(summary, [rest, *texts[1:]], f"documentation: {page}: {names[0]}")
        elif node.tag == "section":
            heading = next((child for child in node.elements() if child.tag in HEADINGS), None)
            if heading is not None:
                title = " ".join(heading.text().split())
                title = re.sub(r"^[\d.]+\s+|^[\w.]+\s+—\s+", "", title)
                yield from _pair(title, paragraphs(node), f"documentation: {page}")


def _pair(summary: str, texts: list[str], source: str) -> Iterator[Summary]:
    kept = (text for text in texts if text and not text.startswith(("Source code:", "See also ")))
    body = cut("\n\n".join(kept).strip())
    if usable(summary, body) and len(body.split()) >= 10:
        yield Summary(body, summary, source, False)


def of_documentation(folder: Path) -> list[Summary]:
    """Return the pairs of all pages; download the package to `folder` if it is missing.

    Raises:
        FileNotFoundError: The package cannot be downloaded.
    """
    pairs: list[Summary] = []
    for name, content in members(fetch(PACKAGE, folder), PAGES):
        match = PAGES.fullmatch(name)
        page = match[1] if match else name
        if page.rpartition("/")[2] not in HELD_OUT_PAGES:
            pairs.extend(of_page(content.decode("utf-8"), page))
    return pairs
