"""What theory predicts (section 3 and appendix A of arXiv 2211.17192).

Importing this imports no torch, and numpy only when a function on distributions is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from specdec_core.theory.cost import best_gamma, expected_tokens_by_position, improvement_at_cost, step_seconds
from specdec_core.theory.oracle import fixed_seconds, oracle_seconds
from specdec_core.theory.speed import (
    expected_tokens,
    improves,
    least_improvement,
    memory_reduction,
    operations_increase,
    optimal_gamma,
    oracle_gain,
    oracle_improvement,
    oracle_tokens,
    walltime_improvement,
)

if TYPE_CHECKING:
    from specdec_core.theory.divergence import (
        acceptance_rate,
        argmax_acceptance_rate,
        lenient_acceptance_rate,
        lenient_deviation,
        lenient_distribution,
        lk_divergence,
        mean_acceptance_rate,
        rejection_acceptance_rate,
    )

_OF_DISTRIBUTIONS = (
    "acceptance_rate",
    "argmax_acceptance_rate",
    "lenient_acceptance_rate",
    "lenient_deviation",
    "lenient_distribution",
    "lk_divergence",
    "mean_acceptance_rate",
    "rejection_acceptance_rate",
)
"""What needs numpy, in a module of its own."""

__all__ = [
    "acceptance_rate",
    "argmax_acceptance_rate",
    "best_gamma",
    "expected_tokens",
    "expected_tokens_by_position",
    "fixed_seconds",
    "improvement_at_cost",
    "improves",
    "least_improvement",
    "lenient_acceptance_rate",
    "lenient_deviation",
    "lenient_distribution",
    "lk_divergence",
    "mean_acceptance_rate",
    "memory_reduction",
    "operations_increase",
    "optimal_gamma",
    "oracle_gain",
    "oracle_improvement",
    "oracle_seconds",
    "oracle_tokens",
    "rejection_acceptance_rate",
    "step_seconds",
    "walltime_improvement",
]


def __getattr__(name: str) -> Any:
    if name in _OF_DISTRIBUTIONS:
        return getattr(importlib.import_module("specdec_core.theory.divergence"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
