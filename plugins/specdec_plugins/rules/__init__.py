"""Acceptance rules, one per module, each with its settings."""
