"""The base of settings, with the same error messages in Python as in a study, and the content of files."""

from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from specdec_core.interface.errors import ConfigError, SpecdecError, unknown_name

_KNOWN = frozenset(get_args(ErrorType))
_BOUNDS = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}


_Model = TypeVar("_Model", bound=BaseModel)


def validated(model: type[_Model], data: object, where: str, error: type[SpecdecError] = ConfigError) -> _Model:
    """Return the content of a file.

    Args:
        model: What it must hold.
        data: JSON as text, or what was read from it.
        where: The file and the place in it, for messages.
        error: The error to raise.

    Raises:
        SpecdecError: It does not hold that; the message names the place and the key.
    """
    try:
        return model.model_validate_json(data) if isinstance(data, (str, bytes)) else model.model_validate(data)
    except ValidationError as cause:
        problem = cause.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"]))
        raise error(f"{where}: {f'{key}: ' if key else ''}{problem['msg']}.") from cause


class Validated(BaseModel):
    """Base of settings: unknown keys are errors, with near misses, and values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="wrap")
    @classmethod
    def _with_near_misses(cls, value: Any, validate: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            found = [cls._told(one) for one in error.errors(include_url=False)]
            raise ValidationError.from_exception_data(error.title, found) from None

    @classmethod
    def _told(cls, one: Any) -> InitErrorDetails:
        """Return a problem as it is, an unknown key with near misses, or a bound with the other one."""
        kind, context = one["type"], one.get("ctx", {})
        field = cls.model_fields.get(str(one["loc"][0])) if len(one["loc"]) == 1 else None
        if kind == "extra_forbidden" and len(one["loc"]) == 1:
            message = unknown_name("key", str(one["loc"][0]), cls.model_fields)
            kind = PydanticCustomError("unknown_key", "{message}", {"message": message})
        elif field is not None and kind.startswith(("greater_than", "less_than")):
            extras = (extra for part in get_args(field.annotation) for extra in getattr(part, "__metadata__", ()))
            bounds = [*field.metadata, *(bound for extra in extras for bound in getattr(extra, "metadata", ()))]
            others = [(word, getattr(bound, name, None)) for bound in bounds for name, word in _BOUNDS.items()]
            said = [f" and {word} {at}" for word, at in others if at is not None and at not in context.values()]
            kind = PydanticCustomError("bounds", "{message}", {"message": one["msg"] + "".join(said)})
        elif kind not in _KNOWN:
            kind = PydanticCustomError(kind, "{message}", {"message": one["msg"]})
        return InitErrorDetails(type=kind, loc=one["loc"], input=one["input"], ctx=context)
