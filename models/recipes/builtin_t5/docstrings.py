"""Make (body, first line) pairs from CPython's docstrings and help topics.

Three kinds, all under CPython's licence (PSF-2.0):

- docstrings of modules, classes and functions of the standard library, from the sources;
- docstrings of C code, from the objects of built-in and extension modules;
- sections of the help topics of `pydoc_data`, with the title as the summary.

The summary is the first paragraph, joined to one line. The body is the rest, dedented and cut to about 150 words
at the end of a paragraph or sentence.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import inspect
import re
import sys
import sysconfig
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.builtin_pair.corpus import HELD_OUT, stdlib_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHORTEST_SUMMARY, LONGEST_SUMMARY = 3, 30  # words
SHORTEST_BODY, LONGEST_BODY = 6, 150  # words

# The C halves of held-out modules repeat their docstrings.
HELD_OUT_EXTENSIONS = {"_heapq", "_json", "_csv", "_statistics"}


@dataclass(frozen=True)
class Summary:
    """A text with its summary and source.

    `held_out` tells whether the source is a held-out module. `module` is the file or extension module, or empty.
    `origin` is CPython or the name of a library.
    """

    body: str
    summary: str
    source: str
    held_out: bool
    module: str = ""
    origin: str = "cpython"


def cut(text: str, longest: int = LONGEST_BODY) -> str:
    """Cut a text to at most about `longest` words, at the end of a paragraph or sentence."""
    if len(text.split()) <= longest:
        return text
    kept: list[str] = []
    count = 0
    for paragraph in re.split(r"\n\s*\n", text):
        words = len(paragraph.split())
        if count + words > longest:
            break
        kept.append(paragraph)
        count += words
    if count >= longest // 3:
        return "\n\n".join(kept)
    start = re.match(rf"(?:\s*\S+){{1,{longest}}}", text)
    piece = start[0] if start else ""
    sentence = piece.rfind(". ", len(piece) // 3), piece.rfind(".\n", len(piece) // 3)
    return piece[: max(sentence) + 1] if max(sentence) > 0 else piece


def split_docstring(text: str) -> tuple[str, str] | None:
    """Return summary and body of a docstring, or None if one is missing."""
    head, _, rest = inspect.cleandoc(text).partition("\n\n")
    # Docstrings of some C functions start with the signature, alone or before a dash.
    if re.match(r"[\w.]+\(.*\)(\s*->.*)?$", " ".join(head.split())):
        head, _, rest = rest.strip().partition("\n\n")
    summary = re.sub(r"^[\w.]+\([^()]*\)\s*(->\s*[^:\n]{1,60}?)?\s*(:|--|-)?\s+", "", " ".join(head.split()))
    kept = [part for part in re.split(r"\n\s*\n", rest.strip("\n")) if not part.lstrip().startswith("Copyright")]
    body = cut(inspect.cleandoc("\n\n".join(kept)).strip())
    return (summary, body) if usable(summary, body) else None


def usable(summary: str, body: str) -> bool:
    """Return whether both have a suitable length and are mostly prose."""
    words, letters = summary.split(), re.sub(r"[^A-Za-z]", "", summary)
    if not SHORTEST_SUMMARY <= len(words) <= LONGEST_SUMMARY or len(letters) < 0.6 * len(summary):
        return False
    if len(body.split()) < SHORTEST_BODY or len(re.findall("[A-Za-z]", body)) < 0.5 * len(body):
        return False
    return not summary.endswith(":")


def of_sources() -> Iterator[Summary]:
    """Yield the docstrings in the Python sources of the standard library, without tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for document in stdlib_modules(root):
        name = document.source.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old sources
            tree = ast.parse(document.text)
        for node, location in documented(tree, name):
            text = ast.get_docstring(node, clean=False)
            parts = split_docstring(text) if text else None
            if parts:
                yield Summary(parts[1], parts[0], location, document.source in HELD_OUT, document.source)


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented(node: ast.AST, name: str) -> Iterator[tuple[Documented, str]]:
    """Yield the modules, classes and functions in a tree, each with its dotted name below `name`."""
    if isinstance(node, Documented):
        yield node, name
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        yield from documented(child, f"{name}.{getattr(child, 'name', '')}" if named else name)


def extension_modules() -> list[str]:
    """Return the names of C modules, built in or in lib-dynload, without test modules."""
    names = set(sys.builtin_module_names)
    folder = Path(sysconfig.get_paths()["stdlib"]) / "lib-dynload"
    if folder.is_dir():
        suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
        names.update(path.name.partition(".")[0] for path in folder.iterdir() if path.name.endswith(suffixes))
    return sorted(name for name in names if not name.startswith(("_test", "xx", "_xx")) and name != "_ctypes_test")


def of_extensions() -> Iterator[Summary]:
    """Yield the docstrings of C modules and of their functions, types and methods."""
    for name in extension_modules():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some modules are deprecated
                module = importlib.import_module(name)
        except ImportError:
            continue
        held_out = name in HELD_OUT_EXTENSIONS
        for location, text in _held(module, name):
            parts = split_docstring(text)
            if parts:
                yield Summary(parts[1], parts[0], location, held_out, name)


def _held(module: object, name: str) -> Iterator[tuple[str, str]]:
    for key, value in [("", module), *sorted(vars(module).items())]:
        location = f"{name}.{key}" if key else name
        if key and not (inspect.isbuiltin(value) or isinstance(value, type)):
            continue
        if isinstance(value.__doc__, str):
            yield location, value.__doc__
        if isinstance(value, type):
            for inner, member in sorted(vars(value).items()):
                if isinstance(getattr(member, "__doc__", None), str) and not isinstance(member, str | int | type):
                    yield f"{location}.{inner}", member.__doc__


def of_topics() -> Iterator[Summary]:
    """Yield the sections of the language reference as shown by `help()`: text and title."""
    from pydoc_data.topics import topics

    underlined = re.compile(r"^(\S.*)\n([*=\-~^\"])\2{3,}\n", re.MULTILINE)
    for name, text in sorted(topics.items()):
        found = list(underlined.finditer(text))
        for match, after in zip(found, [*found[1:], None], strict=True):
            body = cut(inspect.cleandoc(text[match.end() : after.start() if after else len(text)]).strip())
            title = match[1].strip()
            if len(title.split()) >= 2 and usable(f"the {title} section", body):
                yield Summary(body, title, f"pydoc_data.topics.{name}", False)


def summaries(more: Iterable[Summary] = ()) -> tuple[list[Summary], list[Summary]]:
    """Return the training pairs, including `more`, and the held-out pairs, each once.

    Training pairs share neither body nor summary with a held-out one.
    """
    everything = [*of_sources(), *of_extensions(), *of_topics(), *more]
    held_out: dict[tuple[str, str], Summary] = {}
    train: dict[tuple[str, str], Summary] = {}
    for pair in everything:
        (held_out if pair.held_out else train).setdefault((normal(pair.summary), normal(pair.body)), pair)
    titles, bodies = ({key[side] for key in held_out} for side in (0, 1))
    kept = [pair for key, pair in train.items() if key[0] not in titles and key[1] not in bodies]
    return kept, list(held_out.values())


def normal(text: str) -> str:
    """Return the letters of a text in lower case with single spaces, to compare texts."""
    return " ".join(re.findall(r"[^\W\d_]+", text.lower()))
