"""The terminal: consoles, and the trace of a generation."""
