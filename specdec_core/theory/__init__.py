"""Predictions of theory (section 3 and appendix A of arXiv 2211.17192)."""
