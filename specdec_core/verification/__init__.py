"""Acceptance rules and lenience: pure functions of tensors."""

from specdec_core.verification.acceptance import (
    AcceptanceResult,
    AcceptanceRule,
    SpeculativeSampling,
    accept,
    accept_greedy,
)
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
