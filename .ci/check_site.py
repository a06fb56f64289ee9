"""Check every page of the built site in a browser: python .ci/check_site.py SITE [--jobs N].

Opens each page from its file in headless Chromium, without a network, wide and narrow, light and dark, and
prints its faults: console messages, requests that leave the folder or fail, images or formulas that are not
rendered, pages wider than the screen, text with too little contrast. Also searches for what
docs/data/searches.yaml lists, and counts the boxes that scroll sideways. Exits with 1 if there are faults, or more
than a few such boxes.

Needs selenium, and the programs chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

WIDTHS = {"wide": 1400, "narrow": 400}
SCHEMES = {"light": "default", "dark": "slate"}
MIN_CONTRAST = 3.0
"""WCAG requires 3 for large text and 4.5 for other text; the theme's faint marks lie between."""
SCROLLING = "scrolls sideways"
MAX_SCROLLING = 10
"""Code, tables and formulas that may be wider than their place, over all pages and widths."""
SEARCHES = Path(__file__).parents[1] / "docs/data/searches.yaml"
TIMEOUT = 20
"""Seconds to wait for search results."""

LOOK = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")
"""A script that returns the faults of the current page, one line each."""


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Start a Chromium that can only open files.

    Raises:
        SystemExit: Chromium or its driver is not installed.
    """
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise SystemExit("chromium and chromedriver are needed: apt-get install chromium chromium-driver")
    # No downloads and no statistics by selenium.
    os.environ.update(SE_OFFLINE="true", SE_AVOID_STATS="true")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",  # the container it runs in is one
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--window-size={WIDTHS['wide']},900",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        chrome.set_page_load_timeout(60)
        chrome.set_script_timeout(60)
        yield chrome
    finally:
        chrome.quit()


def find_faults(chrome: webdriver.Chrome, page: Path, site: Path) -> list[str]:
    """Return the faults of a page, one line each.

    Args:
        chrome: A browser, on any page.
        page: The page's file.
        site: The folder that requests must stay in.
    """
    chrome.get(page.as_uri())
    found = []
    for scheme, name in SCHEMES.items():
        for size, width in WIDTHS.items():
            shape = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
            lines = chrome.execute_async_script(LOOK, name, MIN_CONTRAST, SCROLLING)
            found += [f"{size}, {scheme}: {line}" for line in lines]
    return found + list(console_messages(chrome)) + list(stray_requests(chrome, site))


def console_messages(chrome: webdriver.Chrome) -> Iterator[str]:
    """Yield the warnings and errors of the console."""
    for entry in chrome.get_log("browser"):
        if entry["level"] in ("SEVERE", "WARNING"):
            yield f"console: {entry['message']}"


def stray_requests(chrome: webdriver.Chrome, site: Path) -> Iterator[str]:
    """Yield the requests that left the site's folder or failed."""
    asked: dict[str, str] = {}
    for entry in chrome.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        parameters = message["params"]
        if message["method"] == "Network.requestWillBeSent":
            url = asked[parameters["requestId"]] = parameters["request"]["url"]
            if not _within(url, site):
                yield f"request: {url}"
        elif message["method"] == "Network.loadingFailed" and not parameters.get("canceled"):
            url = asked.get(parameters["requestId"], "?")
            if _within(url, site):
                yield f"not loaded: {url} ({parameters.get('errorText')})"


def _within(url: str, site: Path) -> bool:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).is_relative_to(site)
    return parts.scheme in ("data", "blob", "about")


def find_search_faults(
    chrome: webdriver.Chrome, page: Path, site: Path, searches: Mapping[str, Path]
) -> list[str]:
    """Search from a page as a reader would, and return the faults.

    Args:
        chrome: A browser, on any page.
        page: The page to search from.
        site: The folder that requests must stay in.
        searches: The page that each search must show first.
    """
    found = []
    for term, answer in searches.items():
        chrome.get(page.as_uri())
        shape = {"width": WIDTHS["wide"], "height": 900, "deviceScaleFactor": 1, "mobile": False}
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        box = chrome.find_element(By.CSS_SELECTOR, "input.md-search__input")
        box.click()
        box.send_keys(term)
        try:
            WebDriverWait(chrome, TIMEOUT).until(lambda c, answer=answer: _first_result(c) == answer)
        except TimeoutException:
            found.append(f"searching for {term!r} shows {_first_result(chrome)} first, not {answer}")
    return [*found, *console_messages(chrome), *stray_requests(chrome, site)]


def _first_result(chrome: webdriver.Chrome) -> Path | None:
    """Return the file of the first result of a search; None as long as there is none."""
    script = "return document.querySelector('a.md-search-result__link')?.href"
    address = chrome.execute_script(script)
    return None if address is None else Path(unquote(urlsplit(address).path))


def pages_of(site: Path) -> list[Path]:
    """Return the pages that readers open; 404.html needs a server."""
    found = sorted(page for page in site.rglob("*.html") if "assets" not in page.relative_to(site).parts)
    return [page for page in found if page.name != "404.html"]


def check(site: Path, pages: Sequence[Path]) -> dict[str, list[str]]:
    """Return the faults of some pages, by page."""
    with browser() as chrome:
        return {page.relative_to(site).as_posix(): find_faults(chrome, page, site) for page in pages}


def check_search(site: Path) -> dict[str, list[str]]:
    """Return the faults of the search, from a page at the top and, with one search, from one in a folder."""
    listed = yaml.safe_load(SEARCHES.read_text(encoding="utf-8"))
    all_of = {term: (site / page).with_suffix(".html") for page, terms in listed.items() for term in terms}
    inner = next(page for page in pages_of(site) if page.parent != site)
    tries = {site / "index.html": all_of, inner: dict([*all_of.items()][:1])}
    with browser() as chrome:
        return {
            f"search from {page.name}": find_search_faults(chrome, page, site, of) for page, of in tries.items()
        }


def main() -> None:
    """Check the site and print its faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="folder that `mkdocs build` wrote")
    parser.add_argument("--jobs", type=int, default=2, help="browsers at once")
    options = parser.parse_args()
    site, begun = options.site.resolve(), time.monotonic()
    pages = pages_of(site)
    if not pages:
        raise SystemExit(f"there is no page in {site}")
    found: dict[str, list[str]] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        parts = [pool.submit(check, site, pages[job :: options.jobs]) for job in range(options.jobs)]
        for part in [*parts, pool.submit(check_search, site)]:
            found.update(part.result())
    boxes = set()
    for page, lines in sorted(found.items()):
        for line in dict.fromkeys(lines):
            print(f"{page}: {line}")  # noqa: T201
            if SCROLLING in line:
                # One box, whichever palette shows it.
                boxes.add((page, line.partition(",")[0], line.partition(SCROLLING)[2]))
    wrong = sum(any(SCROLLING not in line for line in lines) for lines in found.values())
    taken = time.monotonic() - begun
    print(  # noqa: T201
        f"{len(pages)} pages, wide and narrow, light and dark, and search: {wrong} with faults; "
        f"{len(boxes)} boxes scroll sideways, of at most {MAX_SCROLLING} ({taken:.0f} s)"
    )
    sys.exit(wrong > 0 or len(boxes) > MAX_SCROLLING)


if __name__ == "__main__":
    main()
