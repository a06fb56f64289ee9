"""Command-line options from the fields of a flat config model."""

import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

RESERVED = ("quiet", "debug", "help")
"""Names of the command's own options."""

_SCALARS = (bool, int, float, str, Path)
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "multiple_of": "a multiple of"}


@dataclass
class CliField:
    """A config field as a command-line option.

    Attributes:
        name: The field's name.
        types: The types that its value may have, or each of its values if `multiple`.
        choices: Further allowed values (of a `Literal` or `Enum`), in the order of their declaration.
        multiple: Whether the option may be repeated.
        bounds: Constraints on a number, in words: `at least 1`.
        default_off: Whether it is a flag that defaults to False and so needs no `--no-` form.
    """

    name: str
    types: list[type] = field(default_factory=list)
    choices: list[Any] = field(default_factory=list)
    multiple: bool = False
    bounds: list[str] = field(default_factory=list)
    default_off: bool = False

    @property
    def option(self) -> str:
        """The option's name, such as `--batch-size`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def flag(self) -> bool:
        """Whether it is a boolean flag, which takes no value."""
        return bool in self.types

    @property
    def options(self) -> tuple[str, ...]:
        """The option's name, and its `--no-` form if it has one."""
        return (self.option, f"--no-{self.option[2:]}") if self.flag and not self.default_off else (self.option,)

    def parse(self, text: str) -> Any:
        """Parse an argument. Invalid text is returned unchanged, so that pydantic reports the error."""
        for choice in self.choices:
            if text == str(choice):
                return choice
        for number in (int, float):
            if number in self.types:
                try:
                    return number(text)
                except ValueError:
                    continue
        return text


def cli_fields(model: type[BaseModel]) -> list[CliField]:
    """Return the fields of a model as options, in the order of their declaration.

    Raises:
        TypeError: The type of a field cannot be an option. The message names the field and the allowed types.
        ValueError: Two fields have the same option, or a field's option is one of the command's own.
    """
    fields = []
    taken = {f"--{name}": "the command's own" for name in RESERVED}
    for name, info in model.model_fields.items():
        cli_field = _cli_field(name, info)
        for option in cli_field.options:
            if option in taken:
                raise ValueError(f"setting {name!r} would be the option {option}, which is {taken[option]}")
            taken[option] = f"already setting {name!r}"
        fields.append(cli_field)
    return fields


def _cli_field(name: str, info: FieldInfo) -> CliField:
    found = CliField(name, default_off=info.default is False)
    _collect(found, info.annotation)
    found.bounds += _bounds(info.metadata)
    if bool in found.types and (len(found.types) > 1 or found.choices or found.multiple):
        raise TypeError(f"setting {name!r} allows bool and other values; a command-line flag takes no value")
    if info.alias is not None or info.validation_alias is not None:
        raise TypeError(f"setting {name!r} has an alias; remove it, since the option has the name of its field")
    return found


def _collect(found: CliField, annotation: Any) -> None:
    """Add what an annotation allows to `found`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return
    if origin is Annotated:
        _collect(found, arguments[0])
        found.bounds += _bounds(arguments[1:])
    elif origin in (Union, types.UnionType):
        for argument in arguments:
            _collect(found, argument)
    elif origin is Literal:
        found.choices += [choice for choice in arguments if choice is not None]
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        found.choices += [member.value for member in annotation]
    elif (origin is list or (origin is tuple and arguments[1:] == (...,))) and not found.multiple:
        found.multiple = True
        _collect(found, arguments[0])
    elif annotation in _SCALARS:
        found.types.append(annotation)
    else:
        name = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
        raise TypeError(
            f"setting {found.name!r} is {name}, which cannot be a command-line option; a "
            "trainer's settings must be flat: bool, int, float, str, Path, Literal, Enum, any of these or None, "
            "or tuple[X, ...] of them"
        )


def _bounds(metadata: Iterable[Any]) -> list[str]:
    return [
        f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"
        for mark in metadata
        # Inside a union, pydantic leaves `Field(...)` as a FieldInfo.
        for each in (mark.metadata if isinstance(mark, FieldInfo) else (mark,))
        for key, words in _BOUNDS.items()
        if (value := getattr(each, key, None)) is not None
    ]
