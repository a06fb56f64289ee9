"""The hierarchical drafter."""
