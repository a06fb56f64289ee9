"""Acceptance rules and lenience: pure functions of tensors."""

from specdec_core.interface import AcceptanceResult, AcceptanceRule
from specdec_core.verification.acceptance import (
    SpeculativeSampling,
    accept,
    accept_allowed,
    accept_greedy,
    accept_greedy_allowed,
)
from specdec_core.verification.distributions import count_accepted, dense, density, draw_next, residual

__all__ = [
    "AcceptanceResult",
    "AcceptanceRule",
    "SpeculativeSampling",
    "accept",
    "accept_allowed",
    "accept_greedy",
    "accept_greedy_allowed",
    "count_accepted",
    "dense",
    "density",
    "draw_next",
    "residual",
]
