"""The site works from a folder: whatever a page loads lies beside it, and no request leaves it."""

from __future__ import annotations

import re
from urllib.parse import unquote

from tests.docs.pages import ROOT

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_ADDRESS = re.compile(r"^(?:[a-z][a-z+.-]*:)?//|^[a-z][a-z+.-]*:", re.IGNORECASE)
_IN_STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


def loaded(site):
    """What each page loads, with the page that does."""
    for page, tree in site.pages.items():
        if page == "404.html":  # only a server shows it, and it is written for a server's root
            continue
        for tag, attribute in _LOADED.items():
            for node in tree.find(tag):
                # Links to the neighbours and to the page itself are for readers and search engines.
                if tag != "link" or (node.attributes.get("rel") or "") in ("stylesheet", "icon", "preload"):
                    address = node.attributes.get(attribute)
                    if address and not address.startswith("data:"):
                        yield page, address


def test_what_pages_load_lies_beside_them(built_site):
    found = list(loaded(built_site))
    assert {"assets/site.js", "assets/katex/katex.min.js"} <= {address for _, address in found}
    for page, address in found:
        assert not _ADDRESS.search(address), f"{page} loads {address}"
        there = (built_site.folder / page).parent / unquote(address.partition("?")[0].partition("#")[0])
        assert there.is_file(), f"{page} loads {address}"


def test_what_style_sheets_load_lies_beside_them(built_site):
    sheets = sorted(built_site.folder.rglob("*.css"))
    assert len(sheets) >= 3
    for sheet in sheets:
        for groups in _IN_STYLE.findall(sheet.read_text(encoding="utf-8")):
            address = "".join(groups)
            if not address.startswith(("data:", "#")):
                assert not _ADDRESS.search(address), f"{sheet.name} loads {address}"
                # A browser takes the first form of a font that it can read, which is this one.
                address = re.sub(r"\.(woff|ttf)$", ".woff2", address)
                assert (sheet.parent / address).is_file(), f"{sheet.name} loads {address}"


def test_what_was_drawn_is_shown(built_site):
    shown = {address for page, address in loaded(built_site) if address.endswith(".svg")}
    for number in (2, 3, 4, 5):
        assert any(address.endswith(f"assets/figures/figure-{number}.svg") for address in shown)
    theory = built_site.pages["theory.html"]
    assert any("1.6263" in cell.text() for table in theory.find("table") for cell in table.find("td"))
    steps = built_site.pages["how-a-step-works.html"]
    written = re.findall(r"\[-([^]]*)]", (ROOT / "docs" / "how-a-step-works.md").read_text(encoding="utf-8"))
    assert len(written) > 2
    assert [node.text() for node in steps.find("span", "trace-rejected")] == written


def test_the_search_finds_lenience(built_site):
    index = built_site.folder / "search" / "search_index.json"
    assert index.read_text(encoding="utf-8").lower().count("lenience") > 20
    # Without a server the page cannot fetch it: it is a script as well.
    assert (built_site.folder / "search" / "search_index.js").is_file()
