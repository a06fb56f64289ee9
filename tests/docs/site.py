"""The site as it was built, taken apart: its pages, and what stands on them about names of the code."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path

from tests.docs.pages import ROOT

_VOID = frozenset(("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"))


@dataclass(eq=False)
class Node:
    """An element of a page."""

    tag: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    parent: Node | None = None
    parts: list[Node | str] = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()

    @property
    def children(self) -> list[Node]:
        return [part for part in self.parts if isinstance(part, Node)]

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()

    def find(self, tag: str = "", class_: str = "") -> Iterator[Node]:
        return (n for n in self.walk() if tag in ("", n.tag) and (not class_ or class_ in n.classes))

    def text(self) -> str:
        """What a reader sees of it; not the signs that lead to a heading."""
        shown = (part if isinstance(part, str) else part.text() for part in self.parts)
        return "" if "headerlink" in self.classes else "".join(shown)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = self.at = Node("page")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs), self.at)
        self.at.parts.append(node)
        if tag not in _VOID:
            self.at = node

    def handle_endtag(self, tag: str) -> None:
        open_: Node | None = self.at
        while open_ is not None and open_.tag != tag:
            open_ = open_.parent
        if open_ is not None and open_.parent is not None:
            self.at = open_.parent

    def handle_data(self, data: str) -> None:
        if self.at.tag not in ("script", "style"):
            self.at.parts.append(data)


def read_html(text: str) -> Node:
    """A page as a tree."""
    reader = _Reader()
    reader.feed(text)
    return reader.root


@dataclass(frozen=True)
class Entry:
    """What the site says of a name of the code.

    Attributes:
        page: The page, from the site's folder.
        signature: As it is written there; None where there is none.
        text: All else that stands there, its members included.
        listed: Fields that a list of attributes names, and their types.
    """

    page: str
    signature: str | None
    text: str
    listed: dict[str, str]


@dataclass(frozen=True)
class Site:
    """A built site."""

    folder: Path

    @cached_property
    def pages(self) -> dict[str, Node]:
        """Every page, by its path from the site's folder."""
        return {
            path.relative_to(self.folder).as_posix(): read_html(path.read_text(encoding="utf-8"))
            for path in sorted(self.folder.rglob("*.html"))
            if "assets" not in path.relative_to(self.folder).parts
        }

    @cached_property
    def places(self) -> dict[str, str]:
        """Where each name leads that other projects may link to: a name, and the anchor of its entry."""
        data = (self.folder / "objects.inv").read_bytes().split(b"zlib.\n", 1)[1]
        lines = [line.split(" ") for line in zlib.decompress(data).decode().splitlines()]
        return {line[0]: line[3].partition("#")[2].replace("$", line[0]) for line in lines}

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """The entries of the reference, by anchor."""
        return {
            str(node.attributes["id"]): _entry(page, node)
            for page, tree in self.pages.items()
            for node in tree.find(class_="doc-heading")
            if "id" in node.attributes
        }

    def entry(self, name: str) -> Entry | None:
        """The entry of a name, by whichever package it is called."""
        return self.entries.get(self.places.get(name, name))


def _entry(page: str, heading: Node) -> Entry:
    around = heading.parent
    assert around is not None
    signature = next((n.text().strip() for n in around.children if "doc-signature" in n.classes), None)
    contents = next((n for n in around.children if "doc-contents" in n.classes), Node("none"))
    listed = {}
    for title in contents.find("span", "doc-section-title"):
        if title.text() == "Attributes:" and title.parent is not None and title.parent.parent is contents:
            items = contents.children[contents.children.index(title.parent) + 1]
            for item in items.find("li", "doc-section-item"):
                name, *kinds = [code.text() for code in item.find("code")]
                listed[name] = kinds[0] if kinds else ""
    return Entry(page, signature, contents.text(), listed)


def build(folder: Path) -> Site:
    """Build the site as strictly as it is built to be read.

    Raises:
        AssertionError: The build fails, or warns.
    """
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Site(folder)
