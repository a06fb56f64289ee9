"""The plugin interface in short: the names of `specdec_core.interface` with their members, from the docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from specdec_core import interface

_ELSEWHERE = {"BestFirstTree", "Branches", "ModelSettings", "ModelsSpec", "Nested"}
_ELSEWHERE |= {"Progress", "Trainer", "TrainerConfig", "TrainingReport"}
"""Classes that authors of drafters, controllers and rules seldom see; guides explain them."""
_OF_THE_CORE = {"model_config", "prepared", "origin", "made_by_core", "sample_line", "extend", "loop", "clipped"}
"""Members that plugins of others do not need; the reference below has those of the core."""


def summary(_: str) -> str:
    """Return the classes of the interface, by module, with their fields and methods."""
    modules: dict[str, list[type]] = {}
    for name in interface.__all__:
        thing = getattr(interface, name)
        if inspect.isclass(thing) and not issubclass(thing, Exception) and name not in _ELSEWHERE:
            modules.setdefault(thing.__module__.rpartition(".")[2], []).append(thing)
    parts = (part for module in modules for thing in modules[module] for part in _class(thing))
    return "\n" + "\n".join(parts) + "\n"


def _class(thing: type) -> Iterator[str]:
    name = thing.__name__
    yield f'<a id="{name.lower()}"></a>**`{name}`**: {_first_paragraph(thing)}\n'
    members = [*_fields(thing), *_methods(thing)]
    yield from members
    if members:
        yield ""


def _fields(thing: type) -> Iterator[str]:
    for name, kind in inspect.get_annotations(thing).items():
        if not name.startswith("_") and name not in _OF_THE_CORE and not _inherited(thing, name):
            shown = kind if isinstance(kind, str) else inspect.formatannotation(kind)
            about = re.search(rf"^    {name}: (.*(?:\n {{8}}.*)*)", inspect.getdoc(thing) or "", re.MULTILINE)
            yield f"- `{name}`: {_clause(about[1])}" if about else f"- `{name}: {_short(shown)}`"


def _methods(thing: type) -> Iterator[str]:
    for name, value in vars(thing).items():
        method: Any = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if (name.startswith("_") and name != "__call__") or name in _OF_THE_CORE or _inherited(thing, name):
            continue
        if isinstance(method, property):
            yield f"- `{name}`: {_clause(_first_paragraph(method))}"
        elif inspect.isfunction(method) and method.__module__ == thing.__module__ and inspect.getdoc(method):
            signature = inspect.signature(method)
            names = ", ".join(each for each in signature.parameters if each not in ("self", "cls"))
            result = _short(inspect.formatannotation(signature.return_annotation)).strip("'")
            shown = f"{name}({names})" + (f" -> {result}" if result != "None" else "")
            yield f"- `{shown}`: {_clause(_first_paragraph(method))}"


def _inherited(thing: type, name: str) -> bool:
    """Return whether a class of the interface has this member already, and this one only another value of it."""
    bases = (base for base in thing.__mro__[1:] if base.__module__.startswith("specdec_core."))
    return any(name in vars(base) for base in bases)


def _first_paragraph(thing: object) -> str:
    text = _plain((inspect.getdoc(thing) or "").partition("\n\n")[0])
    # A letter such as q stays one.
    return re.sub(r"^a\b|^[a-z](?=[a-z])", lambda first: first[0].upper(), text.removeprefix("Return "))


def _plain(text: str) -> str:
    """Return a part of a docstring in one line, with links only where Markdown has them."""
    return re.sub(r"\[([^]]+)\]\[[^]]*\]", r"\1", " ".join(text.split()))


def _clause(text: str) -> str:
    """Return the first sentence of a part of a docstring, up to a semicolon."""
    return re.split(r"(?<=\.) (?=[A-Z`])|; ", _plain(text), maxsplit=1)[0].rstrip(".") + "."


def _short(annotation: str) -> str:
    """Return an annotation without the modules of its types."""
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", annotation)
