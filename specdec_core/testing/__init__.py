"""The conformance kit: small named checks that a plugin follows the rules of the plugin interface.

Importing this imports neither torch nor pytest. Names that need them are loaded on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_imports
from specdec_core.testing.registration import Check, CheckFailure, check, checks_for
from specdec_core.testing.subject import DrafterSubject, Subject
from specdec_core.testing.subjects import named, subject_of

if TYPE_CHECKING:
    from specdec_core.testing.kits import DrafterKit, GammaKit, LenienceKit, RuleKit, parametrize_with_checks

__all__ = [
    "Check",
    "CheckFailure",
    "DrafterKit",
    "DrafterSubject",
    "GammaKit",
    "LenienceKit",
    "RuleKit",
    "Subject",
    "check",
    "checks_for",
    "named",
    "parametrize_with_checks",
    "subject_of",
]

# These import pytest and torch.
lazy_imports(globals())
