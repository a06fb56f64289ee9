"""The conformance kit: small named checks that a plugin does what the border asks of it.

Importing this imports neither torch nor pytest: what needs them is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from specdec_core.testing.checking import Check, CheckFailure, check, checks
from specdec_core.testing.running import KitReport, Result, run_checks
from specdec_core.testing.subject import DrafterSubject, Subject, named, subject_of

if TYPE_CHECKING:
    from specdec_core.testing.kits import DrafterKit, GammaKit, LenienceKit, parametrize_with_checks

_LAZY = {
    "DrafterKit": "specdec_core.testing.kits",
    "GammaKit": "specdec_core.testing.kits",
    "LenienceKit": "specdec_core.testing.kits",
    "parametrize_with_checks": "specdec_core.testing.kits",
}
"""Public names whose modules import pytest, torch, or both, and where they are."""

__all__ = [
    "Check",
    "CheckFailure",
    "DrafterKit",
    "DrafterSubject",
    "GammaKit",
    "KitReport",
    "LenienceKit",
    "Result",
    "Subject",
    "check",
    "checks",
    "named",
    "parametrize_with_checks",
    "run_checks",
    "subject_of",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
