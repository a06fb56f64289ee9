"""Running a model over a batch: forward passes, the key-value cache and its rollback."""
