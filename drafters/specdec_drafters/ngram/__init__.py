"""The n-gram drafter: tables, ARPA files and the estimator."""
