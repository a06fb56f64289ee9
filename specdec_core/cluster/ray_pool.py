"""Jobs on the workers of a Ray cluster. Importing this imports no Ray; a pool does."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from specdec_core._version import installed_versions
from specdec_core.cluster.pool import Failure, JobError, attempt
from specdec_core.interface.errors import ConfigError, exception_text

RETRIES = 3
"""How often a job is tried again when its worker dies."""
AUTO = "auto"
"""The cluster that `RAY_ADDRESS` names or that runs on this machine; without either, a new one here."""


class RayPool:
    """Runs jobs on a Ray cluster: side by side, or, where they are timed, one at a time.

    Ray accounts for the CPUs and GPUs of jobs, and tries a job again when its worker dies. Timed jobs are run by
    one worker that holds all CPUs of its machine, and the GPUs that they need: Ray starts nothing beside them.

    Args:
        address: `auto`, `local` (a new cluster on this machine), `HOST:PORT` or `ray://HOST:PORT`.

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str = AUTO) -> None:
        self._ray = _import_ray()
        self._address = address
        self._device: tuple[float, Any] | None = None
        self._running: dict[Any, None] = {}
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
        self,
        function: Callable[..., Any],
        jobs: Sequence[tuple[Any, ...]],
        *,
        timed: bool = False,
        cpus: int = 1,
        gpus: float = 0.0,
        own: str | None = None,  # noqa: ARG002  # the workers are separate processes
        return_exceptions: bool = False,
    ) -> Iterator[Any]:
        """Start jobs; yield what a function returns for each; see `Pool.map`."""
        if timed:
            assert not self._running, "jobs that are not timed must end first: they need the CPUs"
            return self._alone(function, jobs, gpus, return_exceptions)
        self._give_back()
        if gpus:
            return self._on_gpus(function, jobs, gpus, return_exceptions)
        remote = self._ray.remote(attempt).options(num_cpus=self._fitting(cpus), max_retries=RETRIES)
        running = [remote.remote(installed_versions(), function, job) for job in jobs]
        self._running.update(dict.fromkeys(running))
        return self._results(running, return_exceptions)

    def _alone(
        self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], gpus: float, keep: bool
    ) -> Iterator[Any]:
        for job in jobs:
            worker = self._timing(gpus)
            yield self._result(worker.run.remote(installed_versions(), function, job), keep)

    def _on_gpus(
        self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], gpus: float, keep: bool
    ) -> Iterator[Any]:
        """Run jobs on one worker for each GPU, which keeps what it has loaded, and frees the GPU at the end."""
        todo, done, running = deque(enumerate(jobs)), dict[int, Any](), dict[Any, tuple[int, Any]]()
        workers = [self._worker(1, gpus) for _ in range(min(len(jobs), self.workers(1, gpus)))]
        idle = list(workers)
        try:
            for next_one in range(len(jobs)):
                while next_one not in done:
                    while idle and todo:
                        number, job = todo.popleft()
                        worker = idle.pop()
                        running[worker.run.remote(installed_versions(), function, job)] = number, worker
                    (ended,), _ = self._ray.wait(list(running), num_returns=1)
                    number, worker = running.pop(ended)
                    done[number] = self._result(ended, keep=True)
                    if isinstance(getattr(done[number], "__cause__", None), self._ray.exceptions.RayActorError):
                        worker = self._worker(1, gpus)  # the other has died too often
                        workers.append(worker)
                    idle.append(worker)
                result = done.pop(next_one)
                if isinstance(result, Exception) and not keep:
                    raise result
                yield result
        finally:
            for worker in workers:
                self._end(worker)

    def _worker(self, cpus: float, gpus: float) -> Any:
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": RETRIES, "max_task_retries": RETRIES}
        return self._ray.remote(_Worker).options(**options).remote()

    def _end(self, worker: Any) -> None:
        with suppress(Exception):  # it may have died, and the cluster may be gone
            self._ray.kill(worker)

    def _results(self, running: list[Any], keep: bool) -> Iterator[Any]:
        try:
            while running:
                first = running.pop(0)
                del self._running[first]
                yield self._result(first, keep)
                del first  # frees what it returned
        finally:
            self._cancel(running)

    def _cancel(self, running: Iterable[Any]) -> None:
        for each in running:
            self._running.pop(each, None)
            with suppress(Exception):  # the cluster may be gone
                # With force=True, Ray 2.60 may abort this process if the job ends at that moment.
                self._ray.cancel(each)

    def end(self, own: str) -> None:
        """Do nothing: a worker frees what it has loaded when a job needs something else."""

    def close(self) -> None:
        """Give back what the pool holds, and leave the cluster. One that the pool started ends."""
        self._cancel(list(self._running))
        self._give_back()
        if self._started and self._ray.is_initialized():
            self._ray.shutdown()

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

    def _timing(self, gpus: float) -> Any:
        """Return the worker of timed jobs, which has a separate device."""
        if self._device is None or self._device[0] != gpus:
            self._give_back()
            able = [node.get("CPU", 0) for node in self._machines() if node.get("GPU", 0) >= gpus]
            if not able:
                raise ConfigError(f"--ray {self._address}: no machine of the cluster has {gpus:g} GPUs.")
            self._device = gpus, self._worker(max(able), gpus)
        return self._device[1]

    def _give_back(self) -> None:
        """End the worker of timed jobs, and free its device."""
        device, self._device = self._device, None
        if device is not None:
            self._end(device[1])

    def _result(self, running: Any, keep: bool) -> Any:
        """Wait for a job; return its result, or what it raised if that is to be kept."""
        try:
            value, failure = self._ray.get(running)
        except self._ray.exceptions.RayError as error:
            problem = self._lost(error)
        except BaseException:
            self._cancel([running])  # Ctrl-C
            self._give_back()
            raise
        else:
            if failure is None:
                return value
            problem = failure.error()
        if not keep:
            raise problem
        return problem

    def _lost(self, error: Exception) -> JobError:
        """Return the error for a job that returned nothing."""
        self._give_back()  # a worker that has died too often is not started again
        if isinstance(error, self._ray.exceptions.RayTaskError):  # it failed before it began
            advice = "Install specdec-core[ray] and the same plugins on every machine of the cluster."
            problem = JobError(f"a worker could not begin a job: {_last_line(error)}. {advice}")
            problem.__cause__ = error
            return problem
        problem = JobError(
            f"the worker of a job died, as did those of {RETRIES} more attempts: {type(error).__name__}. Ray's "
            "logs, by default in /tmp/ray/session_latest/logs, say why; often memory ran out."
        )
        problem.__cause__ = error
        return problem


class _Worker:
    """A worker for many jobs: what one of them keeps in its process, the next one finds."""

    def run(
        self, versions: Mapping[str, str], function: Callable[..., Any], job: tuple[Any, ...]
    ) -> tuple[Any, Failure | None]:
        """Run a job."""
        return attempt(versions, function, job)


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


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
