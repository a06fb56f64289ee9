"""Running jobs in this process or on a Ray cluster. Importing this imports neither Ray nor torch."""

from specdec_core.cluster.pool import JobError, LocalPool, Pool, open_pool, pooled

__all__ = ["JobError", "LocalPool", "Pool", "open_pool", "pooled"]
