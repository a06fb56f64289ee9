"""The prompt-copy drafter (prompt lookup)."""
