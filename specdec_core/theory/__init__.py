"""What theory predicts (section 3 of arXiv 2211.17192). Importing this imports no torch."""

from specdec_core.theory.speed import expected_tokens, walltime_improvement

__all__ = ["expected_tokens", "walltime_improvement"]
