"""Hooks of mkdocs: what the site shows and the Markdown of its pages does not hold.

`<!-- the trace -->` marks the interactive trace of a recorded decoding, up to `<!-- end of the trace -->`.

A page links to files of the repository as they lie in a clone; `for_site` leads these links to what the site has.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))
import outputs
import sections
import trace_figure
import twins

sys.path.pop(0)

if TYPE_CHECKING:
    from jinja2 import Environment
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_BOOSTS = {"api/": 0.001, "commands.md": 0.3}
"""Weight in the search of pages that mention every word, by how their paths begin; that of a guide is 1. With more
weight, names of the API would come before the guides that explain them."""


ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(?<!!)\[(?P<text>(?:`(?P<name>\w+)`)?[^\]]*)\]\((?P<to>[^)\s#:]+)\)")


@cache
def _references() -> Mapping[str, str]:
    """Return the page of the reference that documents each module."""
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    found = ((page, re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)) for page in pages)
    return {module: f"api/{page.name}" for page, modules in found for module in modules}


def for_site(markdown: str, page: str, repository: str) -> str:
    """Return the Markdown of a page without links to files that the site lacks.

    A link to a module leads to its reference, and to the member there that its text begins with as code. Another
    link leads to the repository; without one, its text alone remains.

    Args:
        markdown: The Markdown.
        page: The path of the page in `docs/`.
        repository: The address of the repository, or an empty string.
    """

    def shown(found: re.Match[str]) -> str:
        folder = posixpath.dirname(page)
        path = posixpath.normpath(posixpath.join("docs", folder, found["to"]))
        on_it = path.startswith("docs/") and not path.startswith("docs/examples") and not path.endswith(".py")
        if on_it or not (ROOT / path).exists():
            return found[0]
        module = re.sub(r"^(?:drafters|plugins)/", "", path).removesuffix(".py").replace("/", ".")
        if module in _references():
            to = posixpath.relpath(_references()[module], folder or ".")
            return f"[{found['text']}]({to}" + (f"#{module}.{found['name']})" if found["name"] else ")")
        return f"[{found['text']}]({repository.rstrip('/')}/blob/main/{path})" if repository else found["text"]

    return _LINK.sub(shown, markdown)


def on_config(config: MkDocsConfig) -> None:
    """Link pages to their sources if there is a repository."""
    if config.repo_url:
        config.edit_uri = "edit/main/docs/"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Lead links to what the site has, and describe the page."""
    if page is not None:
        page.meta.setdefault("description", sections.summary(page.file.src_uri).replace("`", ""))
        markdown = for_site(markdown, page.file.src_uri, config.repo_url or "")
        if page.is_homepage:  # no section, so that the column of the navigation would be empty
            page.meta.setdefault("hide", ["navigation"])
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Show printed tables as tables, the tokens of traces in boxes, and the interactive trace; fold summaries."""
    folded = '<details class="members">\n<summary>All names and their members</summary>'
    html = html.replace("<!-- interface: names -->", folded).replace("<!-- end of interface -->", "</details>")
    return trace_figure.on_page(outputs.shown(html))


def on_env(env: Environment, config: MkDocsConfig, files: Files) -> None:  # noqa: ARG001
    """Rank each page for the search, and write llms.txt."""
    pages = [file.page for file in files.documentation_pages() if file.page is not None]
    for page in pages:
        boost = next((boost for path, boost in _BOOSTS.items() if page.file.src_uri.startswith(path)), 1)
        page.meta.setdefault("search", {"boost": boost})
        page.meta.setdefault("tags", sections.searches().get(page.file.src_uri, []))
    from mkdocs.structure.files import File

    overview = twins.overview(config.site_name, config.site_description or "", _in_order(pages))
    files.append(File.generated(config, "llms.txt", content=overview))


def _in_order(pages: Sequence[Page]) -> Iterator[Page]:
    """Yield the pages as the navigation has them."""
    page = next((page for page in pages if page.previous_page is None and page.next_page is not None), None)
    while page is not None:
        yield page
        page = page.next_page


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Write the Markdown of a page beside it."""
    # llms.txt names it. A <link rel="alternate"> is a language for the theme, which asks a server for its sitemap.
    text = twins.markdown(page)
    if text is not None:
        twin = Path(config.site_dir) / page.file.src_uri
        twin.parent.mkdir(parents=True, exist_ok=True)
        twin.write_text(text, encoding="utf-8")
    return output
