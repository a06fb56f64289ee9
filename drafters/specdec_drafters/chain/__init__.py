"""The chain drafter: falls back to the next drafter when one has no draft."""
