"""Whether something that was let go of is gone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import TypeAlias

Reference: TypeAlias = Callable[[], object | None]
"""Returns an object while it is alive, and keeps it from nothing."""


def reference(thing: object) -> Reference | None:
    """Return a reference that does not keep a thing alive; None where its class allows none."""
    try:
        return weakref.ref(thing)
    except TypeError:  # a class with __slots__ may not allow it
        return None


def is_kept(thing: Reference | None) -> bool:
    """Whether something refers to a thing that was let go of, other than the thing itself."""
    if thing is None or thing() is None:
        return False
    gc.collect()  # it may refer to itself, which is no harm
    return thing() is not None
