"""Tools for checks: tiny targets, a driver for draft sessions, simulated batches, statistics."""
