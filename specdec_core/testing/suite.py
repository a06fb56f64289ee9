"""The kits, and the module that `specdec check` has pytest run."""

from specdec_core.interface.spec import PluginKind
from specdec_core.testing.checks.controllers import GammaKit, LenienceKit
from specdec_core.testing.checks.decoding import DecodingChecks
from specdec_core.testing.checks.drafter import ProposalChecks
from specdec_core.testing.checks.rules import RuleKit
from specdec_core.testing.checks.state import IsolationChecks, StateChecks
from specdec_core.testing.kit import Kit


class DrafterKit(DecodingChecks, IsolationChecks, StateChecks, ProposalChecks):
    """Checks a drafter, one test each. Override `make(target)`, or name an installed `plugin`."""


KITS: dict[PluginKind, type[Kit]] = {
    "drafter": DrafterKit,
    "gamma": GammaKit,
    "lenience": LenienceKit,
    "rule": RuleKit,
}
TestPlugin: type[Kit]
"""The kit of the plugin that `specdec check` names, which sets this."""
