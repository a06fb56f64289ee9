"""Running jobs in this process or on a Ray cluster. Importing this imports neither Ray nor torch."""

from specdec_core.cluster.pool import JobError, LocalPool, Pool, pooled

__all__ = ["JobError", "LocalPool", "Pool", "pooled"]
