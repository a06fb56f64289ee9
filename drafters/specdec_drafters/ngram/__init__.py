"""The n-gram drafter: its tables, the ARPA files they are read from, and the estimator that makes them."""
