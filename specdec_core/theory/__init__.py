"""What theory predicts (section 3 and appendix A of arXiv 2211.17192). Importing this imports no torch."""

from specdec_core.theory.cost import best_gamma, expected_tokens_by_position, improvement_at_cost, step_seconds
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

__all__ = [
    "acceptance_rate",
    "argmax_acceptance_rate",
    "best_gamma",
    "expected_tokens",
    "expected_tokens_by_position",
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
    "oracle_tokens",
    "rejection_acceptance_rate",
    "step_seconds",
    "walltime_improvement",
]
