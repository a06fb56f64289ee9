"""The early-exit drafter: the target's first layers, with its own head."""
