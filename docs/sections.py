"""Index pages of the site's sections: each lists the pages of its section with their first sentences."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.structure import StructureItem
    from mkdocs.structure.pages import Page

MARKER = "<!-- pages of this section -->"
"""Line of an index page where the list goes."""

_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_SENTENCE = re.compile(r".*?(?<!\bet al)[.:!?](?=\s|$)", re.DOTALL)


def summary(content: str) -> str:
    """Return the first sentence of a page's HTML, as HTML without links."""
    for paragraph in _PARAGRAPH.findall(content):
        text = " ".join(re.sub(r"</?(?:a|img|span)\b[^>]*>", "", paragraph).split())
        if text:
            found = _SENTENCE.match(text)
            return re.sub(r":$", ".", found[0] if found else text)
    return ""


def plain(text: str) -> str:
    """Return HTML as text."""
    return html.unescape(re.sub(r"<[^>]+>", "", text))


def listing(index: Page) -> str:
    """Return the HTML of the list of an index page: the items of its section, and of sections inside."""
    assert index.parent is not None
    return _items(index, (item for item in index.parent.children if item is not index))


def pages_of(index: Page) -> list[Page]:
    """Return the pages that an index page lists."""
    assert index.parent is not None
    return [page for page in _pages(index.parent.children) if page is not index]


def _pages(items: Iterable[StructureItem]) -> Iterator[Page]:
    for item in items:
        if item.is_page:
            yield item
        elif item.is_section:
            yield from _pages(item.children)


def _items(index: Page, items: Iterator[StructureItem]) -> str:
    from mkdocs.utils import get_relative_url

    lines = []
    for item in items:
        if item.is_page:
            link = f'<a href="{get_relative_url(item.url, index.url)}">{html.escape(item.title)}</a>'
            lines.append(f"<li>{link}: {summary(item.content)}</li>")
        elif item.is_section:
            lines.append(f"<li>{html.escape(item.title)}{_items(index, iter(item.children))}</li>")
    return f"<ul>{''.join(lines)}</ul>"
