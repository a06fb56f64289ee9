"""Jobs on the workers of a Ray cluster. Importing this imports no Ray; a pool does."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from specdec_core._version import installed_versions
from specdec_core.cluster.pool import JobError
from specdec_core.interface.errors import ConfigError, SpecdecError, exception_text

RETRIES = 3
"""How often a job is tried again when its worker dies."""
AUTO = "auto"
"""The cluster that `RAY_ADDRESS` names or that runs on this machine; without either, a new one here."""


class RayPool:
    """Runs jobs on a Ray cluster, which accounts for their CPUs and GPUs and repeats them when a worker dies.

    Jobs that run alone have one worker, which holds all CPUs of its machine: Ray starts nothing beside them.

    Args:
        address: `auto`, `local` (a new cluster on this machine), `HOST:PORT` or `ray://HOST:PORT`.

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str = AUTO) -> None:
        self._ray = _import_ray()
        self._address = address
        self._running: dict[Any, None] = {}
        self._exclusive: tuple[float, Any] | None = None
        self._started = not self._ray.is_initialized()
        if self._started:
            self._connect()
        self._machines()  # raises if there are none

    @property
    def gpus(self) -> int:
        """The most GPUs of one machine of the cluster."""
        return int(max(node.get("GPU", 0) for node in self._machines()))

    def workers(self, cpus: int = 1, gpus: float = 0.0) -> int:
        """Return the number of jobs that run side by side with so many CPUs and GPUs each."""
        cpus = self._fitting(cpus)
        machines = [(node.get("CPU", 0) // cpus, node.get("GPU", 0)) for node in self._machines()]
        return max(1, int(sum(min(most, found // gpus) if gpus else most for most, found in machines)))

    def map(
        self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], *, cpus: int = 1, gpus: float = 0.0
    ) -> Iterator[Any]:
        """Start jobs; yield what a function returns for each; see `Pool.map`."""
        self._end_exclusive()
        options = {"num_cpus": self._fitting(cpus), "num_gpus": gpus, "max_retries": RETRIES}
        remote = self._ray.remote(run_job).options(**options)
        running = [remote.remote(installed_versions(), function, job) for job in jobs]
        self._running.update(dict.fromkeys(running))
        return self._results(running)

    def alone(self, function: Callable[..., Any], *arguments: Any, gpus: float = 0.0) -> Any:
        """Run a job on the worker that has a machine to itself; see `Pool.alone`."""
        assert not self._running, "jobs that run side by side must end first: they need the CPUs"
        if self._exclusive is None or self._exclusive[0] != gpus:
            self._end_exclusive()
            able = [node.get("CPU", 0) for node in self._machines() if node.get("GPU", 0) >= gpus]
            if not able:
                raise ConfigError(f"--ray {self._address}: no machine of the cluster has {gpus:g} GPUs.")
            options = {"max_restarts": RETRIES, "max_task_retries": RETRIES}
            actor = self._ray.remote(_Worker).options(num_cpus=max(able), num_gpus=gpus, **options)
            self._exclusive = gpus, actor.remote()
        return self._result(self._exclusive[1].run.remote(installed_versions(), function, arguments))

    def close(self) -> None:
        """Give back what the pool holds, and leave the cluster. One that the pool started ends."""
        self._cancel(list(self._running))
        self._end_exclusive()
        if self._started and self._ray.is_initialized():
            self._ray.shutdown()

    def _results(self, running: list[Any]) -> Iterator[Any]:
        try:
            while running:
                first = running.pop(0)
                del self._running[first]
                yield self._result(first)
                del first  # frees what it returned
        finally:
            self._cancel(running)

    def _result(self, running: Any) -> Any:
        """Wait for a job; return its result, or raise what it raised."""
        try:
            return self._ray.get(running)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SpecdecError):
                raise error.cause from error
            raise JobError(f"a job failed on a worker: {exception_text(error.cause or error)}") from error
        except self._ray.exceptions.RayError as error:
            self._end_exclusive()  # a worker that has died too often is not started again
            raise JobError(
                f"the worker of a job died, as did those of {RETRIES} more attempts: {type(error).__name__}. "
                "Ray's logs, by default in /tmp/ray/session_latest/logs, say why; often memory ran out."
            ) from error
        except BaseException:
            self._cancel([running])  # Ctrl-C
            self._end_exclusive()
            raise

    def _cancel(self, running: Iterable[Any]) -> None:
        for each in running:
            self._running.pop(each, None)
            with suppress(Exception):  # the cluster may be gone
                # With force=True, Ray 2.60 may abort this process if the job ends at that moment.
                self._ray.cancel(each)

    def _end_exclusive(self) -> None:
        exclusive, self._exclusive = self._exclusive, None
        if exclusive is not None:
            with suppress(Exception):  # it may have died, and the cluster may be gone
                self._ray.kill(exclusive[1])

    def _connect(self) -> None:
        options = {"include_dashboard": False} if self._address == "local" else {}
        address = None if self._address == AUTO else self._address
        try:
            with _own_signals():
                self._ray.init(
                    address=address, log_to_driver=False, logging_level="ERROR", configure_logging=True, **options
                )
        except Exception as error:  # ConnectionError, ValueError, RuntimeError for other versions of Ray or Python
            raise ConfigError(
                f"--ray {self._address}: the cluster cannot be reached: {exception_text(error)}. Expected auto, "
                "local, HOST:PORT or ray://HOST:PORT; `ray status` on one of its machines says whether it runs."
            ) from error

    def _fitting(self, cpus: int) -> int:
        """Return a number of CPUs, or that of the largest machine if it has less."""
        return max(1, min(cpus, int(max(node.get("CPU", 0) for node in self._machines()))))

    def _machines(self) -> list[Mapping[str, float]]:
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not machines:
            raise ConfigError(
                f"--ray {self._address}: the cluster has no machine that is alive; `ray status` says which there "
                "were. Start one, and run the same command again: it goes on from what is stored."
            )
        return machines


def run_job(versions: Mapping[str, str], function: Callable[..., Any], job: tuple[Any, ...]) -> Any:
    """Run a job on a worker.

    Args:
        versions: What `installed_versions` says where the job comes from. Results name these only, so a job
            fails where others would compute.
        function: The function.
        job: Its arguments.

    Raises:
        ConfigError: The worker has other versions.
    """
    here = installed_versions()
    if other := [name for name, one in versions.items() if here.get(name, one) != one]:
        there = ", ".join(f"{name} {here[name]}" for name in other)
        wanted = ", ".join(f"{name} {versions[name]}" for name in other)
        raise ConfigError(
            f"a worker has {there}, and this process {wanted}; install the same version on every machine."
        )
    return function(*job)


class _Worker:
    """A worker for many jobs: what one of them keeps in its process, the next one finds."""

    def run(self, versions: Mapping[str, str], function: Callable[..., Any], job: tuple[Any, ...]) -> Any:
        return run_job(versions, function, job)


def _import_ray() -> Any:
    # Ray sends statistics to its makers otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ConfigError(
            f"--ray needs the package ray, which cannot be imported ({error}): pip install 'specdec-core[ray]'."
        ) from error
    return ray


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of this process, of which Ray replaces one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
