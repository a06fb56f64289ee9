"""Speculative beam search (appendix A.4 of arXiv 2211.17192): exact beams in fewer target forward passes."""
