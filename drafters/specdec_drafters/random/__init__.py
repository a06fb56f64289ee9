"""The random drafter."""
