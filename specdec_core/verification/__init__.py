"""Acceptance rules and lenience: pure functions of tensors."""

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_imports

if TYPE_CHECKING:
    from specdec_core.interface import AcceptanceResult as AcceptanceResult
    from specdec_core.interface import AcceptanceRule as AcceptanceRule
    from specdec_core.verification.acceptance import SpeculativeSampling as SpeculativeSampling
    from specdec_core.verification.acceptance import accept as accept
    from specdec_core.verification.acceptance import accept_allowed as accept_allowed
    from specdec_core.verification.acceptance import accept_greedy as accept_greedy
    from specdec_core.verification.acceptance import accept_greedy_allowed as accept_greedy_allowed
    from specdec_core.verification.distributions import count_accepted as count_accepted
    from specdec_core.verification.distributions import dense as dense
    from specdec_core.verification.distributions import density as density
    from specdec_core.verification.distributions import draw_next as draw_next
    from specdec_core.verification.distributions import residual as residual

lazy_imports(globals())
