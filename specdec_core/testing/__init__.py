"""The conformance kit: tests that a plugin follows the rules of the plugin interface. Imports pytest and torch."""

from specdec_core.testing.checks.controllers import GammaKit, LenienceKit
from specdec_core.testing.checks.rules import RuleKit
from specdec_core.testing.failures import CheckFailure
from specdec_core.testing.suite import DrafterKit

__all__ = ["CheckFailure", "DrafterKit", "GammaKit", "LenienceKit", "RuleKit"]
