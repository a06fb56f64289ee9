"""Methods of a module overridden for one thread, while other threads run the same module.

What a forward pass needs to change or to see (positions per row, the input of the output embedding) belongs to the
thread that runs it. A hook or a patch would belong to the model.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_thread = threading.local()
_installing = threading.Lock()


class Overridable:
    """A method of a module, which the current thread may have overridden.

    It stays in the module, where it calls the method it replaced. A copy of the module gets its own.

    Args:
        method: The bound method.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        functools.update_wrapper(self, method)  # the same signature
        self.method = method

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call what the thread has set, with the method as the first argument; by default the method."""
        overrides: dict[Any, Any] = vars(_thread)
        override = overrides.get(id(self))
        return self.method(*args, **keywords) if override is None else override(self.method, *args, **keywords)


@contextmanager
def overridden(module: Any, name: str, override: Callable[..., Any]) -> Iterator[None]:
    """Override a method of a module in this thread, for the duration of the block.

    Args:
        module: The module. Its method becomes `Overridable`, and stays so.
        name: The method.
        override: Called instead, with the method as its first argument.
    """
    method = _overridable(module, name)
    overrides: dict[Any, Any] = vars(_thread)
    before = overrides.get(id(method))
    overrides[id(method)] = override
    try:
        yield
    finally:
        if before is None:
            del overrides[id(method)]
        else:
            overrides[id(method)] = before


def _overridable(module: Any, name: str) -> Overridable:
    method = getattr(module, name)
    if isinstance(method, Overridable):
        return method
    with _installing:  # of two, one would be lost
        method = getattr(module, name)
        if not isinstance(method, Overridable):
            method = Overridable(method)
            setattr(module, name, method)
    return method
