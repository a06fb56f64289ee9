"""Models, prompts and records that ship, weights of drafters for them, and n-gram models, as `builtin:NAME`."""
