"""Shared by several drafters. Importing this imports no numpy and no torch."""

BUILTIN_STDLIB = "builtin:stdlib"
BUILTIN_TEXTS = (BUILTIN_STDLIB,)
"""Built-in texts: the Python standard library."""
