"""Readable messages for pydantic validation errors: where, what was given, what is allowed."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from pydantic import ValidationError

from specdec_core.interface.errors import shortened, unknown_name
from specdec_core.registry.nesting import Keys, dotted

Where: TypeAlias = Callable[[Keys, bool], str]
"""Returns the location of a value (or of its key, if True), given the keys that lead to it."""

Form: TypeAlias = Literal["yaml", "python", "options"]
"""How settings were written: in YAML, in Python, or as options of a command that name one key each."""
MAX_PROBLEMS = 20
"""Maximum number of problems that one error reports."""
_KINDS = {
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
}
"""Names of types in YAML, by pydantic's error type."""


def describe(
    error: ValidationError,
    data: Any,
    where: Where,
    written: Callable[[Keys], Keys] = lambda path: path,
    *,
    form: Form = "yaml",
) -> list[str]:
    """Return one message per problem, in pydantic's order, without duplicates; of many, the first.

    Args:
        error: The validation error.
        data: The data that was validated.
        where: Turns keys into a location such as `study.yaml:3:5`.
        written: Maps keys of expanded data back to the keys that the user wrote.
        form: How the user wrote the data.
    """
    found = error.errors(include_url=False)
    locations = [item["loc"] for item in found]
    messages: dict[str, None] = {}
    for number, item in enumerate(found):
        if len(messages) == MAX_PROBLEMS:
            return [*messages, f"{len(found) - number:,} more problems are not shown."]
        loc = item["loc"]
        # pydantic reports a list as too short if its entries are invalid.
        if item["type"] == "too_short" and any(len(o) > len(loc) and o[: len(loc)] == loc for o in locations):
            continue
        names_key = item["type"] in {"unknown_key", "missing"}
        path, whole = _without_tags(loc, data, names_key=names_key)
        around = path[:-1] if whole else path
        key = item["type"] == "unknown_key"
        # pydantic inserts the name of a plugin before the keys of its settings.
        tag = loc[-2] if len(loc) > 1 and isinstance(loc[-2], str) and around[-1:] != loc[-2:-1] else None
        message = _message(item, written(path), written(around), tag, form)
        messages[f"{where(path, key)}: {message}"] = None
    return list(messages)


def _message(item: Any, path: Keys, around: Keys, plugin: str | None, form: Form) -> str:
    kind, given, context = item["type"], item["input"], item.get("ctx", {})
    inside = f"{dotted(around)}: " if around else ""
    if kind == "unknown_key":
        return inside + str(item["msg"])
    if kind == "missing":
        key = str(item["loc"][-1])
        return f"{inside}missing key {key!r}{_with_key(plugin, key, form) if plugin else ''}."
    if kind == "literal_error":
        expected = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ").split(", ")
        return inside + unknown_name(f"value of {item['loc'][-1]}", str(given), expected)
    reason = item["msg"].removeprefix("Value error, ")
    named = f"{dotted(path)}: " if path else ""
    if kind in _KINDS:
        return f"{named}expected {_KINDS[kind]}; given {_short(given, form)}."
    if kind == "too_short":
        least, actual = context["min_length"], context["actual_length"]
        entries = "entry" if least == 1 else "entries"
        return f"{named}expected at least {least} {entries}; given {actual or 'an empty list'}."
    one_of_several = form == "yaml" and isinstance(given, list) and (kind == "plugin" or kind.endswith("_type"))
    several = " To compare several values, list them in the `grid` of a run or task." if one_of_several else ""
    if kind in {"plugin", "value_error"}:
        return f"{named}{reason}{several}"
    return f"{named}{reason[0].lower()}{reason[1:]}; given {_short(given, form)}.{several}"


def _with_key(plugin: str, key: str, form: Form) -> str:
    ways = {"yaml": f"{{name: {plugin}, {key}: ...}}", "python": f'{{"name": "{plugin}", "{key}": ...}}'}
    return f"; write {ways[form]}" if form in ways else ""


def _short(value: Any, form: Form) -> str:
    if form != "python" and (value is None or isinstance(value, bool)):
        return json.dumps(value)
    return shortened(repr(value), 60)


def _without_tags(loc: Sequence[str | int], data: Any, *, names_key: bool) -> tuple[Keys, bool]:
    """Return a location without the names of plugins that pydantic inserts between the keys or after them.

    Args:
        loc: pydantic's location.
        data: The data that was validated.
        names_key: Whether the last part is a key that is missing or unknown, and never the name of a plugin.

    Returns:
        The location, and False if it was cut at settings written in short form, as a bare value.
    """
    path: list[str | int] = []
    node: Any = data
    for index, part in enumerate(loc):
        if not isinstance(node, (dict, list)):
            return tuple(path), False
        if isinstance(node, list) and isinstance(part, str):
            continue  # a list stands for a mapping with one key
        last = names_key and index == len(loc) - 1
        if isinstance(node, dict) and part not in node and node.get("name") == part and not last:
            continue
        path.append(part)
        node = _entry(node, part)
    return tuple(path), True


def _entry(node: Any, part: str | int) -> Any:
    try:
        return node[part]
    except (KeyError, IndexError, TypeError):
        return None
