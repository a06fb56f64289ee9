"""Jobs in this process, in separate processes, or on the workers of a Ray cluster.

A job is a function and its arguments. It must be importable by its name, and its arguments and its result plain
data, so that any worker can run it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from specdec_core._version import installed_versions
from specdec_core.interface import Progress, errors
from specdec_core.interface.errors import SpecdecError, raised_text


class JobError(SpecdecError):
    """A job failed, and not by an error that the user can fix; or its worker died again and again."""


class Pool(Protocol):
    """Runs jobs. Results come back in the order of the jobs, whichever ends first."""

    @property
    def gpus(self) -> int:
        """The most GPUs of one machine; 0 where jobs use what the process sees."""

    def map(
        self,
        function: Callable[..., Any],
        jobs: Sequence[tuple[Any, ...]],
        *,
        timed: bool = False,
        cpus: int = 1,
        gpus: float = 0.0,
        own: str | None = None,
        return_exceptions: bool = False,
    ) -> Iterator[Any]:
        """Start jobs; yield what a function returns for each.

        Args:
            function: Called with the arguments of a job.
            jobs: The arguments of each.
            timed: Run one job at a time, always on the same device, which nothing else uses.
            cpus: Number of CPUs that a job which is not timed needs: those of one machine, if that has less.
            gpus: Number of GPUs that a job needs.
            own: Run the jobs in the process with this name, where names have separate processes.
            return_exceptions: Yield what a job raises, and go on with the others.

        Raises:
            SpecdecError: What a job raised; `JobError` for all that is not a `SpecdecError`. The other jobs are
                canceled.
        """

    def workers(self, cpus: int = 1, gpus: float = 0.0) -> int:
        """Return the number of jobs that run side by side with so many CPUs and GPUs each."""

    def end(self, own: str) -> None:
        """End the process with a name, if there is one."""

    def close(self) -> None:
        """Give back what the pool holds."""


class LocalPool:
    """Runs jobs in this process, one after the other."""

    gpus = 0

    def workers(self, cpus: int = 1, gpus: float = 0.0) -> int:  # noqa: ARG002
        """Return 1."""
        return 1

    def map(
        self,
        function: Callable[..., Any],
        jobs: Sequence[tuple[Any, ...]],
        *,
        return_exceptions: bool = False,
        **resources: Any,  # noqa: ARG002  # jobs share what this process has
    ) -> Iterator[Any]:
        """Yield the result of a function for each job; see `Pool.map`. What jobs raise is not changed."""
        for job in jobs:
            try:
                yield function(*job)
            except Exception as error:
                if not return_exceptions:
                    raise
                yield error

    def end(self, own: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def open_pool(address: str | None = None) -> Pool:
    """Return a pool.

    Args:
        address: A Ray cluster, as in `RayPool`; None for this process.

    Raises:
        ConfigError: Ray is not installed, or the cluster does not exist.
    """
    if address is None:
        return LocalPool()
    from specdec_core.cluster.ray_pool import RayPool

    return RayPool(address)


@contextmanager
def pooled(address: str | Pool | None, progress: Progress) -> Iterator[Pool | None]:
    """Yield the workers of a Ray cluster, and leave it at the end; None without an address.

    Args:
        address: The cluster, as in `RayPool`; or a pool, which stays open.
        progress: Where progress is reported.

    Raises:
        ConfigError: Ray is not installed, or the cluster does not exist.
    """
    if address is None or not isinstance(address, str):
        yield address
        return
    progress.stage("joining the Ray cluster")
    pool = open_pool(address)
    try:
        yield pool
    finally:
        pool.close()


@dataclass(frozen=True)
class Failure:
    """A job's exception, in a form that any process can read.

    Attributes:
        kind: Name of the class of `specdec_core.interface.errors`; empty for any other exception.
        message: What it says.
        trace: The traceback on the worker.
    """

    kind: str
    message: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return an exception that a job raised."""
        trace = "".join(traceback.format_exception(error))
        for known in type(error).__mro__:
            if issubclass(known, SpecdecError) and getattr(errors, known.__name__, None) is known:
                return cls(known.__name__, str(error), trace)
        return cls("", raised_text(error), trace)

    def error(self) -> SpecdecError:
        """Return the exception, with the traceback of the worker as its cause."""
        kind: type[SpecdecError] = getattr(errors, self.kind, JobError)
        error = kind(self.message)
        error.__cause__ = _WorkerError(self.trace)
        return error


class _WorkerError(Exception):
    """Shows the traceback of another process."""

    def __init__(self, trace: str) -> None:
        super().__init__(f'\n"""\n{trace}"""')


def attempt(
    versions: Mapping[str, str], function: Callable[..., Any], job: tuple[Any, ...]
) -> tuple[Any, Failure | None]:
    """Run a job on a worker.

    Args:
        versions: What `installed_versions` says where the job comes from. Results name these only, so a job
            fails where others would compute.
        function: The function.
        job: Its arguments.

    Returns:
        What the function returned, and what it raised.
    """
    here = installed_versions()
    other = [name for name, one in versions.items() if here.get(name, one) != one]
    if other:
        there = ", ".join(f"{name} {here[name]}" for name in other)
        wanted = ", ".join(f"{name} {versions[name]}" for name in other)
        said = f"a worker has {there}, and this process {wanted}; install the same version on every machine."
        return None, Failure("ConfigError", said, "")
    try:
        return function(*job), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit, too: the worker goes on
        return None, Failure.of(error)
