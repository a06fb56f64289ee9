"""Guarded calls into plugins: a faulty one costs speed, never a token."""
