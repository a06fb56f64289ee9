"""Predictions of theory (section 3 and appendix A of arXiv 2211.17192).

Importing this imports no torch, and numpy only when a function on distributions is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_attributes
from specdec_core.theory.oracle import fixed_seconds, oracle_seconds
from specdec_core.theory.speed import (
    expected_tokens,
    expected_tokens_by_position,
    improves,
    memory_reduction,
    min_improvement,
    operations_increase,
    optimal_gamma,
    oracle_gain,
    oracle_improvement,
    oracle_tokens,
    walltime_improvement,
)
from specdec_core.theory.trees import best_tree, best_tree_at_cost, expected_tree_tokens, tree_improvement

if TYPE_CHECKING:
    from specdec_core.theory.blocks import (
        allowed_acceptance,
        block_acceptance,
        rejection_acceptance,
        token_acceptance,
        transport_bound,
    )
    from specdec_core.theory.divergence import (
        acceptance_rate,
        greedy_acceptance_rate,
        lenient_acceptance_rate,
        lenient_deviation,
        lenient_distribution,
        lk_divergence,
        mean_acceptance_rate,
        rejection_acceptance_rate,
    )

__all__ = [
    "acceptance_rate",
    "allowed_acceptance",
    "best_tree",
    "best_tree_at_cost",
    "block_acceptance",
    "expected_tokens",
    "expected_tokens_by_position",
    "expected_tree_tokens",
    "fixed_seconds",
    "greedy_acceptance_rate",
    "improves",
    "lenient_acceptance_rate",
    "lenient_deviation",
    "lenient_distribution",
    "lk_divergence",
    "mean_acceptance_rate",
    "memory_reduction",
    "min_improvement",
    "operations_increase",
    "optimal_gamma",
    "oracle_gain",
    "oracle_improvement",
    "oracle_seconds",
    "oracle_tokens",
    "rejection_acceptance",
    "rejection_acceptance_rate",
    "token_acceptance",
    "transport_bound",
    "tree_improvement",
    "walltime_improvement",
]

# These import numpy.
lazy_attributes(
    globals(),
    {
        "specdec_core.theory.blocks": (
            "allowed_acceptance",
            "block_acceptance",
            "rejection_acceptance",
            "token_acceptance",
            "transport_bound",
        ),
        "specdec_core.theory.divergence": (
            "acceptance_rate",
            "greedy_acceptance_rate",
            "lenient_acceptance_rate",
            "lenient_deviation",
            "lenient_distribution",
            "lk_divergence",
            "mean_acceptance_rate",
            "rejection_acceptance_rate",
        ),
    },
)
