"""The base of settings, with the same error messages in Python as in a study."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from specdec_core.interface.errors import unknown_name

_KNOWN = frozenset(get_args(ErrorType))


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
        """Return a problem as it is, or that of an unknown key with near misses."""
        kind, context = one["type"], one.get("ctx", {})
        if kind == "extra_forbidden" and len(one["loc"]) == 1:
            message = unknown_name("key", str(one["loc"][0]), cls.model_fields)
            kind = PydanticCustomError("unknown_key", "{message}", {"message": message})
        elif kind not in _KNOWN:
            kind = PydanticCustomError(kind, "{message}", {"message": one["msg"]})
        return InitErrorDetails(type=kind, loc=one["loc"], input=one["input"], ctx=context)
