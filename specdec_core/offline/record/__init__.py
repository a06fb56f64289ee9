"""Records: texts of a target with the probability of each token."""
