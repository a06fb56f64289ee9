"""The pages of the site: their order, their summaries, and the lists of the index pages."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parent


@cache
def summaries() -> Mapping[str, str]:
    """Return what each page has for its readers, in one line, by its path in `docs/`."""
    found: dict[str, str] = yaml.safe_load((DOCS / "data" / "summaries.yaml").read_text(encoding="utf-8"))
    return found


@cache
def searches() -> Mapping[str, list[str]]:
    """Return what readers search for, by the path in `docs/` of the page that answers it."""
    found: dict[str, list[str]] = yaml.safe_load((DOCS / "data" / "searches.yaml").read_text(encoding="utf-8"))
    return found


def summary(page: str) -> str:
    """Return the summary of a page.

    Raises:
        ValueError: The page has none.
    """
    if page not in summaries():
        raise ValueError(f"{page} has no summary; write one line for it into docs/data/summaries.yaml")
    return summaries()[page]


def listing(index: str) -> str:
    """Return the pages of a section with their summaries, for its index page.

    Args:
        index: The path of the index page in `docs/`, such as `guides/index.md`.

    Raises:
        ValueError: No section of the navigation in `mkdocs.yml` begins with this page, or a page has no summary.
    """
    section = next((items for items in _sections(_navigation()) if items[0] == index), None)
    if section is None:
        raise ValueError(f"{index} begins no section of the navigation in mkdocs.yml")
    return "\n" + "".join(f"{line}\n" for line in _lines(section[1:], posixpath.dirname(index))) + "\n"


def _navigation() -> Sequence[Any]:
    class Loader(yaml.SafeLoader):
        """Reads the settings of mkdocs, whose tags stand for values of the environment."""

    Loader.add_multi_constructor("!", lambda *_: None)
    items: Sequence[Any] = yaml.load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"), Loader)["nav"]
    return items


def _sections(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for item in items:
        if isinstance(item, dict):
            for inner in item.values():
                if isinstance(inner, list):
                    yield inner
                    yield from _sections(inner)


def _lines(items: Iterable[Any], folder: str, indent: str = "") -> Iterator[str]:
    for item in items:
        ((title, inner),) = item.items()
        page = inner if isinstance(inner, str) else inner[0]
        if isinstance(page, str):  # or a section that begins with an index page of its own, which lists the rest
            yield f"{indent}- [{title}]({posixpath.relpath(page, folder)}): {summary(page)}"
        else:
            yield f"{indent}- {title}"
            yield from _lines(inner, folder, indent + "    ")
