"""Acceptance rules and lenience: pure functions of tensors."""

from specdec_core.interface import AcceptanceResult, AcceptanceRule
from specdec_core.verification.acceptance import SpeculativeSampling, accept, accept_greedy
from specdec_core.verification.distributions import dense, density, residual

__all__ = [
    "AcceptanceResult",
    "AcceptanceRule",
    "SpeculativeSampling",
    "accept",
    "accept_greedy",
    "dense",
    "density",
    "residual",
]
