"""Jobs in this process or on the workers of a Ray cluster. Importing this imports neither Ray nor torch.

A job is a function and its arguments. It must be importable by its name, and its arguments and its result plain
data, so that any worker can run it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import starmap
from typing import Any, Protocol

from specdec_core.interface import Progress, SpecdecError


class JobError(SpecdecError):
    """A job failed, and not by an error that the user can fix; or its worker died again and again."""


class Pool(Protocol):
    """Runs jobs."""

    @property
    def gpus(self) -> int:
        """The most GPUs of one machine; 0 where jobs use what the process sees."""

    def workers(self, cpus: int = 1, gpus: float = 0.0) -> int:
        """Return the number of jobs that run side by side with so many CPUs and GPUs each."""

    def map(
        self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], *, cpus: int = 1, gpus: float = 0.0
    ) -> Iterator[Any]:
        """Start jobs; yield what a function returns for each, in the order of the jobs, whichever ends first.

        Args:
            function: Called with the arguments of a job.
            jobs: The arguments of each.
            cpus: Number of CPUs that a job needs: those of one machine, if that has less.
            gpus: Number of GPUs that a job needs.

        Raises:
            SpecdecError: What a job raised; `JobError` for all that is not a `SpecdecError`. The other jobs are
                canceled.
        """

    def alone(self, function: Callable[..., Any], *arguments: Any, gpus: float = 0.0) -> Any:
        """Run a job while nothing else runs on its machine, where the last such job ran; return its result.

        Raises:
            SpecdecError: As for `map`.
        """

    def close(self) -> None:
        """Give back what the pool holds."""


class LocalPool:
    """Runs jobs in this process, one after the other. What they raise is not changed."""

    gpus = 0

    def workers(self, cpus: int = 1, gpus: float = 0.0) -> int:  # noqa: ARG002
        """Return 1."""
        return 1

    def map(
        self,
        function: Callable[..., Any],
        jobs: Sequence[tuple[Any, ...]],
        **resources: Any,  # noqa: ARG002  # jobs share what this process has
    ) -> Iterator[Any]:
        """Yield the result of a function for each job."""
        return starmap(function, jobs)

    def alone(self, function: Callable[..., Any], *arguments: Any, gpus: float = 0.0) -> Any:  # noqa: ARG002
        """Return the result of a job."""
        return function(*arguments)

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def pooled(address: str | Pool | None, progress: Progress) -> Iterator[Pool | None]:
    """Yield the workers of a Ray cluster, and leave it at the end; None without an address.

    Args:
        address: The cluster, as in `RayPool`; or a pool, which stays open.
        progress: Where progress is reported.

    Raises:
        ConfigError: Ray is not installed, or the cluster does not exist.
    """
    if not isinstance(address, str):
        yield address
        return
    from specdec_core.cluster.ray_pool import RayPool

    progress.stage("joining the Ray cluster")
    pool = RayPool(address)
    try:
        yield pool
    finally:
        pool.close()
