"""Gamma controllers, one per module, each with its settings."""
