"""Calls into plugins: what one does wrong costs speed, never a token."""
