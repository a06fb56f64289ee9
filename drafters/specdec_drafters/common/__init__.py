"""Shared by several drafters."""
