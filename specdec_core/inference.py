"""Running without gradients, at no cost where they are off already."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def inference_only(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function under `torch.inference_mode`.

    The mode is entered only where it is not on: a step calls a dozen such functions inside one another, and
    entering it is not free.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode():
            return function(*args, **kwargs)

    return run
