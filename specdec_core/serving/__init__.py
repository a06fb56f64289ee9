"""Drafters in the servers of others: the files that `specdec export` writes, and the code that runs there."""
