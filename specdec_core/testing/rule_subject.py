"""Acceptance rules under test."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from specdec_core.interface import AcceptanceRule, RuleConfig
from specdec_core.interface.spec import PluginKind
from specdec_core.testing.effort import Effort
from specdec_core.testing.registration import CheckFailure
from specdec_core.testing.subject import Subject

if TYPE_CHECKING:
    from specdec_core.testing.harness.tiny_target import TinyTarget


@dataclass(frozen=True)
class RuleSubject(Subject):
    """An acceptance rule under test."""

    kind: ClassVar[PluginKind] = "rule"
    label: ClassVar[str] = "acceptance rule"
    make_must_be: ClassVar[str] = "a function without arguments that returns an AcceptanceRule"

    @property
    def target(self) -> TinyTarget:
        """The tiny target that it is checked on, with the kit's own drafter."""
        from specdec_core.testing.harness.tiny_target import tiny_target

        return tiny_target(device=self.device)

    def fresh(self) -> AcceptanceRule:
        """Build the rule.

        Raises:
            CheckFailure: It cannot be built, or its settings do not derive from `RuleConfig`.
        """
        rule: AcceptanceRule = self.build(AcceptanceRule)  # type: ignore[type-abstract]
        if not isinstance(rule.config, RuleConfig):
            got = f"settings of type {type(rule.config).__name__}"
            hint = "They declare where the rule is lossless, and whether it takes lenience."
            raise CheckFailure("built the rule and read its config", got, "a RuleConfig", hint)
        return rule

    @property
    def declared(self) -> Any:
        """The rule's settings, with what they declare."""
        return self.once("declared", lambda: self.fresh().config)

    def _timed_effort(self) -> Effort:
        import torch

        from specdec_core.interface import PointMass, Proposal

        rule = self.fresh()
        proposal = Proposal(torch.zeros(64, 2, dtype=torch.long), (2,) * 64, PointMass())
        began = perf_counter()
        rule.greedy(proposal, torch.zeros(64, 3, 6), None)
        return Effort.of_controller(perf_counter() - began)
