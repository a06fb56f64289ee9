"""Read English program messages from the sources of Python libraries, as prompts without references.

Libraries raise, log and show messages of the same kind as those in the catalogs, but without translations: the
strings in `raise` statements, in calls that log or warn, in calls of gettext, and in `help` and `description`
arguments. Expressions in f-strings become placeholders.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING

from recipes.builtin_t5.libraries import SOURCES, Library
from recipes.builtin_t5.programs import fetch, members

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CALLS = {"_", "gettext", "gettext_lazy", "ngettext", "warn", "debug", "info", "warning", "error", "exception"}
CALLS |= {"critical", "_LE", "_LI", "_LW", "fail", "deprecate"}
KEYWORDS = {"help", "help_text", "description", "msg", "message", "verbose_name"}
SHORTEST, LONGEST = 3, 30  # words


def text_of(node: ast.expr | None) -> str:
    """Return the text of a string expression with its placeholders, or an empty string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        name = ast.unparse(node.value)
        return "{" + (name if name.isidentifier() else "value") + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
        return text_of(node.left) + (text_of(node.right) if isinstance(node.op, ast.Add) else "")
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "format":
            return text_of(function.value)
        return text_of(node.args[0]) if node.args and name_of(node) in CALLS else ""
    return ""


def name_of(call: ast.Call) -> str:
    """Return the last name of what is called."""
    function = call.func
    return getattr(function, "attr", "") if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def strings_of(tree: ast.AST) -> Iterator[str]:
    """Yield the messages of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from map(text_of, node.exc.args[:2])
        elif isinstance(node, ast.Call):
            if name_of(node) in CALLS:
                yield from map(text_of, node.args[:1])
            yield from (text_of(keyword.value) for keyword in node.keywords if keyword.arg in KEYWORDS)


def tidy(text: str) -> str:
    """Return a message on one line, or an empty string if it is not a plain sentence."""
    line = " ".join(text.split())
    words = line.split()
    plain = len(re.findall(r"[A-Za-z ]", line)) >= 0.8 * len(line) and "://" not in line and "\\" not in line
    return line if plain and SHORTEST <= len(words) <= LONGEST and line[0].isalpha() else ""


def messages_of(library: Library, folder: Path) -> list[str]:
    """Return the distinct messages of a library; download its archive to `folder` if it is missing.

    Raises:
        FileNotFoundError: The archive cannot be downloaded.
    """
    found: dict[str, None] = {}
    for _, content in members(fetch(library.package, folder), SOURCES):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes
                tree = ast.parse(content)
        except (SyntaxError, ValueError):
            continue
        found.update(dict.fromkeys(map(tidy, strings_of(tree))))
    return [line for line in found if line]
