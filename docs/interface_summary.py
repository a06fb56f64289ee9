"""The plugin interface in short: the names of `specdec_core.interface` with their members, from the docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from specdec_core import interface


def summary(_: str) -> str:
    """Return the classes of the interface, by module, with their fields and methods."""
    modules: dict[str, list[type]] = {}
    for name in interface.__all__:
        thing = getattr(interface, name)
        if inspect.isclass(thing):
            modules.setdefault(thing.__module__.rpartition(".")[2], []).append(thing)
    parts = (part for module in modules for thing in modules[module] for part in _class(thing))
    return "\n" + "\n".join(parts) + "\n"


def _class(thing: type) -> Iterator[str]:
    yield f"**`{thing.__name__}`**: {_first_paragraph(thing)}\n"
    members = [*_fields(thing), *_methods(thing)]
    yield from members
    if members:
        yield ""


def _fields(thing: type) -> Iterator[str]:
    for name, kind in inspect.get_annotations(thing).items():
        if not name.startswith("_") and name != "model_config":
            shown = kind if isinstance(kind, str) else inspect.formatannotation(kind)
            about = re.search(rf"^    {name}: (.*(?:\n {{8}}.*)*)", inspect.getdoc(thing) or "", re.MULTILINE)
            yield f"- `{name}: {_short(shown)}`" + (f": {_sentence(about[1])}" if about else "")


def _methods(thing: type) -> Iterator[str]:
    for name, value in vars(thing).items():
        method: Any = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(method, property):
            yield f"- `{name}`: {_sentence(_first_paragraph(method))}"
        elif inspect.isfunction(method) and method.__module__ == thing.__module__ and inspect.getdoc(method):
            signature = str(inspect.signature(method)).replace("'", "")
            arguments = _short(re.sub(r"\((?:self|cls)(?:, )?", "(", signature, count=1))
            yield f"- `{name}{arguments}`: {_sentence(_first_paragraph(method))}"


def _first_paragraph(thing: object) -> str:
    return _plain((inspect.getdoc(thing) or "").partition("\n\n")[0])


def _plain(text: str) -> str:
    """Return a part of a docstring in one line, with links only where Markdown has them."""
    return re.sub(r"\[([^]]+)\]\[[^]]*\]", r"\1", " ".join(text.split()))


def _sentence(text: str) -> str:
    """Return the first sentence of a part of a docstring."""
    return re.split(r"(?<=\.) (?=[A-Z`])", _plain(text), maxsplit=1)[0]


def _short(annotation: str) -> str:
    """Return an annotation without the modules of its types, validators, and functions that are defaults."""
    text = re.sub(r"<function .*? at 0x[0-9a-f]+>", "...", annotation)
    text = re.sub(r"Annotated\[(.*), \w+\([^()]*\)\]", r"\1", text)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text)
