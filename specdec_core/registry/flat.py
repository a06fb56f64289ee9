"""Settings that fit on a command line: each a flag, a number, a text, a path, a choice, or several of these."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

if TYPE_CHECKING:
    from pydantic import BaseModel

RESERVED = ("quiet", "debug", "help")
"""Names of options that the command has itself."""

_SCALARS = (bool, int, float, str, Path)
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "multiple_of": "a multiple of"}


@dataclass(frozen=True)
class FlatSetting:
    """A field of a config model, as an option.

    Attributes:
        name: The field's name.
        kinds: The types that its value, or each of its values, may have; choices aside.
        choices: Values that are allowed besides, in the order in which they were listed.
        many: Whether it takes any number of values.
        bounds: What a number must keep to, in words: `at least 1`.
        off: Whether it is false unless said, so that nobody has to deny it.
    """

    name: str
    kinds: tuple[type, ...] = ()
    choices: tuple[Any, ...] = ()
    many: bool = False
    bounds: tuple[str, ...] = ()
    off: bool = False

    @property
    def option(self) -> str:
        """How it is written on a command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def flag(self) -> bool:
        """Whether it is true or false, and so takes no value."""
        return bool in self.kinds

    @property
    def options(self) -> tuple[str, ...]:
        """All the ways in which it may be written."""
        deniable = self.flag and not self.off
        return (self.option, f"--no-{self.option[2:]}") if deniable else (self.option,)

    def read(self, text: str) -> Any:
        """Return what a text means; one that means nothing is returned as it is, for pydantic to refuse."""
        for choice in self.choices:
            if text == str(choice):
                return choice
        for kind in (int, float):
            if kind in self.kinds:
                try:
                    return kind(text)
                except ValueError:
                    continue
        return text


def flat_settings(model: type[BaseModel]) -> list[FlatSetting]:
    """Return the fields of a model as options, in their order.

    Raises:
        TypeError: A field cannot be an option; the message names it and says what can.
        ValueError: Two fields would be the same option, or one would be an option that every command has.
    """
    settings = []
    taken = {f"--{name}": "the command's own" for name in RESERVED}
    for name, info in model.model_fields.items():
        setting = _flat_setting(name, info)
        for option in setting.options:
            if option in taken:
                raise ValueError(f"setting {name!r} would be the option {option}, which is {taken[option]}")
            taken[option] = f"setting {name!r} already"
        settings.append(setting)
    return settings


@dataclass
class _Allowed:
    """What was found in an annotation so far."""

    kinds: list[type] = field(default_factory=list)
    choices: list[Any] = field(default_factory=list)
    many: bool = False
    bounds: list[str] = field(default_factory=list)


def _flat_setting(name: str, info: FieldInfo) -> FlatSetting:
    found = _Allowed()
    _enter(found, info.annotation, name)
    found.bounds += _bounds(info.metadata)
    if bool in found.kinds and (len(found.kinds) > 1 or found.choices or found.many):
        raise TypeError(f"setting {name!r} is true or false or something else; an option is one or the other")
    if info.alias is not None or info.validation_alias is not None:
        raise TypeError(f"setting {name!r} has an alias; an option is called as its field")
    off = info.default is False
    return FlatSetting(name, tuple(found.kinds), tuple(found.choices), found.many, tuple(found.bounds), off)


def _enter(found: _Allowed, annotation: Any, name: str) -> None:
    """Enter what an annotation allows."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return
    if origin is Annotated:
        _enter(found, arguments[0], name)
        found.bounds += _bounds(arguments[1:])
    elif origin in (Union, types.UnionType):
        for argument in arguments:
            _enter(found, argument, name)
    elif origin is Literal:
        found.choices += [choice for choice in arguments if choice is not None]
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        found.choices += [member.value for member in annotation]
    elif (origin is list or (origin is tuple and arguments[1:] == (...,))) and not found.many:
        found.many = True
        _enter(found, arguments[0], name)
    elif annotation in _SCALARS:
        found.kinds.append(annotation)
    else:
        raise TypeError(
            f"setting {name!r} is {_called(annotation)}, which no option can be; settings of a trainer are flat: "
            "bool, int, float, str, Path, Literal, Enum, any of these or None, or tuple[X, ...] of them"
        )


def _bounds(metadata: Iterable[Any]) -> list[str]:
    return [
        f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"
        for mark in _flat(metadata)
        for key, words in _BOUNDS.items()
        if (value := getattr(mark, key, None)) is not None
    ]


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    for mark in metadata:
        # Within a union, pydantic leaves its `Field(...)` as it was written.
        yield from mark.metadata if isinstance(mark, FieldInfo) else (mark,)


def _called(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
