"""Make (body, first line) pairs of CPython's documentation strings.

Four kinds, all of CPython and under its licence (PSF-2.0):

- docstrings of modules, classes and functions of the standard library, read from the source;
- docstrings of what is written in C, read from the objects that built-in and extension modules hold;
- the sections of the help topics of `pydoc_data`, where the title is the summary;

The summary is the first paragraph joined to one line. The body is what follows, dedented and cut at
about 150 words where a paragraph or a sentence ends.
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
    """A text, its first line, where it stands, and whether that is a held-out module.

    `module` is the file or the extension module, and stays empty for what is neither.
    """

    body: str
    summary: str
    source: str
    held_out: bool
    module: str = ""


def cut(text: str, longest: int = LONGEST_BODY) -> str:
    """Return the start of a text of at most about `longest` words, ended where a paragraph or sentence ends."""
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
    """Return summary and body of a docstring, or None if it has not both."""
    head, _, rest = inspect.cleandoc(text).partition("\n\n")
    # A C function that is not yet converted begins with its signature, alone or before a dash.
    if re.match(r"[\w.]+\(.*\)(\s*->.*)?$", " ".join(head.split())):
        head, _, rest = rest.strip().partition("\n\n")
    summary = re.sub(r"^[\w.]+\([^()]*\)\s*(->\s*[^:\n]{1,60}?)?\s*(:|--|-)?\s+", "", " ".join(head.split()))
    kept = [part for part in re.split(r"\n\s*\n", rest.strip("\n")) if not part.lstrip().startswith("Copyright")]
    body = cut(inspect.cleandoc("\n\n".join(kept)).strip())
    return (summary, body) if usable(summary, body) else None


def usable(summary: str, body: str) -> bool:
    """Say whether the two have a fair length and are mostly prose."""
    words, letters = summary.split(), re.sub(r"[^A-Za-z]", "", summary)
    if not SHORTEST_SUMMARY <= len(words) <= LONGEST_SUMMARY or len(letters) < 0.6 * len(summary):
        return False
    if len(body.split()) < SHORTEST_BODY or len(re.findall("[A-Za-z]", body)) < 0.5 * len(body):
        return False
    return not summary.endswith(":")


def of_sources() -> Iterator[Summary]:
    """Yield the docstrings in the standard library's Python sources, without tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for document in stdlib_modules(root):
        name = document.source.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old sources
            tree = ast.parse(document.text)
        for node, place in _documented(tree, name):
            text = ast.get_docstring(node, clean=False)
            parts = split_docstring(text) if text else None
            if parts:
                yield Summary(parts[1], parts[0], place, document.source in HELD_OUT, document.source)


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _documented(node: ast.AST, name: str) -> Iterator[tuple[Documented, str]]:
    if isinstance(node, Documented):
        yield node, name
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _documented(child, f"{name}.{getattr(child, 'name', '')}" if named else name)


def extension_modules() -> list[str]:
    """Return the names of modules written in C, built in or in lib-dynload, without those for tests."""
    names = set(sys.builtin_module_names)
    folder = Path(sysconfig.get_paths()["stdlib"]) / "lib-dynload"
    if folder.is_dir():
        suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
        names.update(path.name.partition(".")[0] for path in folder.iterdir() if path.name.endswith(suffixes))
    return sorted(name for name in names if not name.startswith(("_test", "xx", "_xx")) and name != "_ctypes_test")


def of_extensions() -> Iterator[Summary]:
    """Yield the docstrings of modules written in C and of their functions, types and methods."""
    for name in extension_modules():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some are about to leave the library
                module = importlib.import_module(name)
        except ImportError:
            continue
        held_out = name in HELD_OUT_EXTENSIONS
        for place, text in _held(module, name):
            parts = split_docstring(text)
            if parts:
                yield Summary(parts[1], parts[0], place, held_out, name)


def _held(module: object, name: str) -> Iterator[tuple[str, str]]:
    for key, value in [("", module), *sorted(vars(module).items())]:
        place = f"{name}.{key}" if key else name
        if key and not (inspect.isbuiltin(value) or isinstance(value, type)):
            continue
        if isinstance(value.__doc__, str):
            yield place, value.__doc__
        if isinstance(value, type):
            for inner, member in sorted(vars(value).items()):
                if isinstance(getattr(member, "__doc__", None), str) and not isinstance(member, str | int | type):
                    yield f"{place}.{inner}", member.__doc__


def of_topics() -> Iterator[Summary]:
    """Yield the sections of the language reference as `help()` shows it: text and title."""
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
    """Return the pairs for training, `more` among them, and the held-out ones, each once.

    What stands in a held-out module, by its body or by its summary, is not in the first list.
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
    """Return the letters of a text, small, with single spaces: texts equal in it count as the same."""
    return " ".join(re.findall(r"[^\W\d_]+", text.lower()))
