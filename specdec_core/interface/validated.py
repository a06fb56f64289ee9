"""The base of settings, with the same error messages in Python as in a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from specdec_core.interface.errors import unknown_name

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _Named(ModelMetaclass):
    """Names near misses of an unknown keyword argument. Settings that are read from a study do not pass here."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        try:
            return super().__call__(*args, **settings)
        except ValidationError as error:
            found = [self._told(one) for one in error.errors(include_url=False)]
            raise ValidationError.from_exception_data(error.title, found) from None

    def _told(self, one: Any) -> InitErrorDetails:
        """Return a problem with the same type and message, or a better one, and without a link to pydantic."""
        message = one["msg"]
        if one["type"] == "extra_forbidden" and len(one["loc"]) == 1:
            message = unknown_name("key", str(one["loc"][0]), vars(self)["__pydantic_fields__"])
        told = PydanticCustomError(one["type"], "{message}", {"message": message})
        return InitErrorDetails(type=told, loc=one["loc"], input=one["input"])


class Validated(BaseModel, metaclass=_Named):
    """Base of settings: unknown keys are errors, with near misses, and values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
