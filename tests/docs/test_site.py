"""The site builds strictly, works from a folder without a network, and documents every public name."""

import importlib
import posixpath
import re
import zlib
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from specdec_core.registry.hookspecs import HookSpecs
from tests.docs.public_names import public_names

pytestmark = pytest.mark.slow  # `scripts/docs` builds the site too
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_ADDRESS = re.compile(r"^(?:[a-z][a-z+.-]*:)?//|^[a-z][a-z+.-]*:", re.IGNORECASE)
_IN_STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """What a page loads, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        address = found.get(_LOADED.get(tag, "")) or ""
        if tag != "link" or (found.get("rel") or "") in ("stylesheet", "icon", "preload"):
            self.loads += [address] if address and not address.startswith("data:") else []

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def pages(site) -> dict[str, Page]:
    """Every page of the site, by its path."""
    found = (path for path in site.rglob("*.html") if path.name != "404.html" and "assets" not in path.parts)
    return {path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8")) for path in found}


@pytest.fixture(scope="module")
def documented(site) -> set[str]:
    """Every name of the reference, from the inventory that other projects link by."""
    data = zlib.decompress((site / "objects.inv").read_bytes().split(b"zlib.\n", 1)[1])
    return {line.split(" ")[0] for line in data.decode().splitlines()}


def test_pages_load_only_files_beside_them(site, pages):
    assert {"assets/site.js", "assets/katex/katex.min.js"} <= set(pages["index.html"].loads)
    for name, page in pages.items():
        for address in page.loads:
            file = (site / name).parent / unquote(re.split("[?#]", address)[0])
            assert not _ADDRESS.search(address), f"{name} loads {address}"
            assert file.is_file(), f"{name} loads {address}"


def test_style_sheets_load_only_files_beside_them(site):
    for sheet in site.rglob("*.css"):
        for groups in _IN_STYLE.findall(sheet.read_text(encoding="utf-8")):
            address = "".join(groups)
            if not address.startswith(("data:", "#")):
                # Browsers take the first format of a font that they can read, which is woff2.
                file = sheet.parent / re.sub(r"\.(woff|ttf)$", ".woff2", address)
                assert file.is_file(), f"{sheet.name} loads {address}"


def test_what_the_build_draws_is_shown(site, pages):
    for number in (2, 3, 4, 5):
        assert (site / f"assets/figures/figure-{number}.svg").is_file()
    assert "1.6263" in pages["theory.html"].text  # Table 1
    assert 'class="trace-rejected"' in (site / "start.html").read_text(encoding="utf-8")
    assert '<div class="output"><table><thead>' in (site / "theory.html").read_text(encoding="utf-8")
    assert not [name for name, page in pages.items() if "$$" in page.text]  # formulas that were left as text


def test_every_page_is_listed_by_the_index_page_of_its_part(site, pages):
    indexes = [name for name in pages if name.endswith("/index.html")]
    assert len(indexes) == 6
    listed = {"index.html", *indexes}
    for name in indexes:
        text = (site / name).read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
        found = re.findall(r'<li><a href="([^"#]+)">[^<]+</a>: (.)', text)
        assert len(found) >= 2, f"{name} lists {found}"
        listed |= {posixpath.normpath(posixpath.join(posixpath.dirname(name), link)) for link, _ in found}
    assert listed == pages.keys()


def test_pages_have_their_markdown_beside_them_and_are_in_the_overview(site, pages):
    overview = (site / "llms.txt").read_text(encoding="utf-8")
    assert overview.startswith("# specdec\n\n> ")
    listed = dict(re.findall(r"^- \[[^]]+\]\(([^)]+)\): (.+)$", overview, re.MULTILINE))
    assert len(listed) == len(pages)
    assert all((site / address).is_file() for address in listed)
    rendered = {address for address in listed if address.endswith(".html")}
    assert rendered
    assert all(address.startswith("api/") for address in rendered)
    for address in listed.keys() - rendered:
        text = (site / address).read_text(encoding="utf-8")
        assert "<!--" not in text, address
        assert (site / address).with_suffix(".html").is_file()
        for link in re.findall(r"\]\(([\w./-]+\.(?:md|html))[)#]", text):
            assert ((site / address).parent / link).is_file(), f"{address} links to {link}"


def test_every_public_name_is_documented(documented):
    missing = []
    for package, name in public_names():
        thing = getattr(importlib.import_module(package), name)
        home = f"{getattr(thing, '__module__', package)}.{getattr(thing, '__qualname__', name)}"
        if not {home, f"{package}.{name}"} & documented:
            missing.append(f"{package}.{name}")
    assert not missing


def test_every_hook_is_documented(documented):
    hooks = [name for name, value in vars(HookSpecs).items() if hasattr(value, "specdec_spec")]
    assert hooks
    assert {f"{HookSpecs.__module__}.HookSpecs.{hook}" for hook in hooks} <= documented
