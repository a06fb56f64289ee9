"""Make (description, first line) pairs from the docstrings of Python libraries under permissive licences.

Their docstrings often go on with sections of parameters, return values and examples. The description is the prose
before the first section; a docstring without one is left out. A first line that more than `MAX_REPEATS` docstrings
have says little about the rest, and those docstrings are left out too.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipes.builtin_t5.docstrings import Summary, documented, normal, split_docstring
from recipes.builtin_t5.programs import Package, fetch, members

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHORTEST_PROSE = 8  # words
MAX_REPEATS = 3
SPACE = "▁"  # the tokenizer's sign for a space, which it does not tell from one

# Tests, and copies of other projects, among them of CPython's held-out modules.
SOURCES = re.compile(
    r"(?!.*(?:^|/)_?(?:tests?|testing|vendor(?:ed)?|extern(?:al)?|externals|compat|backports|examples?)/).*\.py"
)
SECTION = re.compile(
    r"^[ \t]*(?:"
    r"\S[^\n]*\n[ \t]*[-=~^*]{3,}[ \t]*$"  # NumPy style: an underlined title
    r"|(?:[A-Z]\w+(?: \w+)?):[ \t]*$"  # Google style: Args:
    r"|[:@](?:param|parameter|arg|type|return|returns|rtype|raise|raises|var|ivar|cvar|since|see)\b"  # fields
    r"|>>>|\.\. \S+::|\.\. \[)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Library:
    """A library whose docstrings are used, and its licence."""

    package: Package
    licence: str


def _library(name: str, version: str, licence: str) -> Library:
    return Library(Package("pypi", name, version), licence)


LIBRARIES = (
    _library("numpy", "2.5.5", "BSD-3-Clause"),
    _library("scipy", "1.18.1", "BSD-3-Clause"),
    _library("pandas", "3.1.1", "BSD-3-Clause"),
    _library("scikit-learn", "1.9.1", "BSD-3-Clause"),
    _library("scikit-image", "0.26.0", "BSD-3-Clause"),
    _library("statsmodels", "0.15.0", "BSD-3-Clause"),
    _library("matplotlib", "3.11.2", "Matplotlib (PSF-based)"),
    _library("sympy", "1.14.0", "BSD-3-Clause"),
    _library("networkx", "3.7", "BSD-3-Clause"),
    _library("astropy", "8.0.2", "BSD-3-Clause"),
    _library("biopython", "1.88", "Biopython or BSD-3-Clause"),
    _library("mne", "1.13.2", "BSD-3-Clause"),
    _library("nibabel", "5.4.2", "MIT"),
    _library("pymatgen", "2026.10.24", "MIT"),
    _library("dask", "2026.8.0", "BSD-3-Clause"),
    _library("distributed", "2026.8.0", "BSD-3-Clause"),
    _library("xarray", "2026.9.0", "Apache-2.0"),
    _library("zarr", "3.4.2", "MIT"),
    _library("bokeh", "3.10.1", "BSD-3-Clause"),
    _library("seaborn", "0.13.2", "BSD-3-Clause"),
    _library("nltk", "3.10.4", "Apache-2.0"),
    _library("transformers", "5.23.0", "Apache-2.0"),
    _library("diffusers", "0.42.1", "Apache-2.0"),
    _library("datasets", "5.2.0", "Apache-2.0"),
    _library("huggingface-hub", "2.4.0", "Apache-2.0"),
    _library("keras", "3.15.1", "Apache-2.0"),
    _library("jax", "0.12.0.1", "Apache-2.0"),
    _library("optuna", "5.0.0", "MIT"),
    _library("Twisted", "26.10.0", "MIT"),
    _library("Scrapy", "2.19.0", "BSD-3-Clause"),
    _library("aiohttp", "3.14.5", "Apache-2.0"),
    _library("celery", "5.7.0", "BSD-3-Clause"),
    _library("SQLAlchemy", "2.1.9", "MIT"),
    _library("Django", "6.1.3", "BSD-3-Clause"),
    _library("wagtail", "8.0.1", "BSD-3-Clause"),
    _library("homeassistant", "2026.2.3", "Apache-2.0"),
    _library("nova", "34.0.0", "Apache-2.0"),
    _library("neutron", "29.0.0", "Apache-2.0"),
    _library("keystone", "30.0.0", "Apache-2.0"),
    _library("openstack-heat", "27.0.1", "Apache-2.0"),
    _library("apache-superset", "6.1.0", "Apache-2.0"),
    _library("apache-airflow-core", "3.3.2", "Apache-2.0"),
    _library("sphinx", "9.2.0", "BSD-2-Clause"),
    _library("ipython", "9.18.1", "BSD-3-Clause"),
    _library("pytest", "9.2.0", "MIT"),
    _library("textual", "8.2.8", "MIT"),
    _library("openpyxl", "3.1.5", "MIT"),
)


def prose(body: str) -> str:
    """Return the part of a body before its first section, without markup of roles and literals."""
    section = SECTION.search(body)
    text = (body[: section.start()] if section else body).strip()
    text = re.sub(r":(?:[\w-]+:)+`~?([^`<]*?)(?:\s*<[^`>]*>)?`", r"\1", text)
    return re.sub(r"L\{([^{}]*)\}|C\{([^{}]*)\}|``([^`]*)``", lambda match: match[match.lastindex or 1], text)


def of_source(content: str, module: str, library: str) -> Iterator[Summary]:
    """Yield the pairs of a module of a library, or none if it is not Python of this version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes
            tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return
    for node, name in documented(tree, module):
        text = ast.get_docstring(node, clean=False)
        parts = split_docstring(text) if text else None
        if parts is None:
            continue
        summary, body = prose(parts[0]), prose(parts[1])
        usable = len(body.split()) >= SHORTEST_PROSE and len(summary.split()) >= 3 and not summary.endswith(",")
        if usable and SPACE not in summary + body:
            yield Summary(body, summary, name, False, origin=library)


def of_library(library: Library, folder: Path) -> list[Summary]:
    """Return the pairs of a library, each description once; download its archive to `folder` if it is missing.

    Raises:
        FileNotFoundError: The archive cannot be downloaded.
    """
    found: dict[str, Summary] = {}
    for name, content in members(fetch(library.package, folder), SOURCES):
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for pair in of_source(content.decode("utf-8", errors="replace"), module, library.package.name):
            found.setdefault(normal(pair.body), pair)
    counts = Counter(normal(pair.summary) for pair in found.values())
    return [pair for pair in found.values() if counts[normal(pair.summary)] <= MAX_REPEATS]
