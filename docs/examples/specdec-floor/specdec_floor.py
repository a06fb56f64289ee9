"""The acceptance rule `floor`: draft tokens that are not much less probable than the best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from specdec_core import PluginSpec, hookimpl
from specdec_core.interface import AcceptanceResult, AcceptanceRule, Proposal, RuleConfig
from specdec_core.interface.spec import LosslessAt

if TYPE_CHECKING:
    from torch import Tensor


# --8<-- [start:config]
class FloorConfig(RuleConfig):
    """Draft tokens that are not much less probable than the best; lossy where it samples."""

    share: Annotated[float, Field(gt=0, le=1)] = 0.3
    """A draft token is accepted if its probability is at least this share of the largest one."""

    @property
    def lossless_at(self) -> LosslessAt:
        return "greedy"


# --8<-- [end:config]
# --8<-- [start:rule]
class Floor(AcceptanceRule):
    """Accepts x if p(x) >= share * max p; where p is one-hot, that is the argmax alone."""

    def sample(self, proposal: Proposal, p: Tensor, lenience: Tensor | None, uniforms: Tensor) -> AcceptanceResult:
        from specdec_core.verification import accept, accept_allowed

        width = proposal.tokens.shape[1]
        if not width:  # an empty draft: the token is drawn from p; lenience is always None
            return accept(proposal, p, lenience, uniforms)
        here = p[:, :width]
        allowed = (here >= self.config.share * here.amax(dim=2, keepdim=True)) & (here > 0)
        return accept_allowed(proposal, p, allowed, uniforms)

    def greedy(self, proposal: Proposal, scores: Tensor, lenience: Tensor | None) -> AcceptanceResult:
        from specdec_core.verification import accept_greedy

        return accept_greedy(proposal, scores, lenience)


# --8<-- [end:rule]
@hookimpl
def specdec_rules() -> list[PluginSpec]:
    """Announce the rule."""
    return [PluginSpec("rule", "floor", "specdec_floor:Floor", FloorConfig)]
