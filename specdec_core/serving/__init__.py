"""Drafters in the servers of others: what `specdec export` writes, and what runs there."""
