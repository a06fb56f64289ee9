"""The site for those who read it with a program: the Markdown beside each page, and llms.txt (llmstxt.org)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

_REFERENCE = re.compile(r"(\]\((?:\.\./)?api/[\w-]+)\.md")


def markdown(page: Page) -> str | None:
    """Return the Markdown of a page without its comments; None for the reference, which has only docstrings."""
    if page.file.src_uri.startswith("api/"):
        return None
    text = _REFERENCE.sub(r"\1.html", page.markdown or "")
    return re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)


def overview(name: str, about: str, pages: Iterable[Page]) -> str:
    """Return llms.txt: the pages by parts of the site, each with its summary."""
    lines = [f"# {name}", "", f"> {about}"]
    part = None
    for page in pages:
        top = page.ancestors[-1].title if page.ancestors else page.title
        if top != part:
            lines += ["", f"## {top}", ""]
            part = top
        lines.append(_entry(page))
    return "\n".join(lines) + "\n"


def _entry(page: Page) -> str:
    """Return the line of a page."""
    address = page.url if markdown(page) is None else page.file.src_uri
    return f"- [{page.title}]({address}): {page.meta['description']}"
