"""Jobs in separate processes: a plugin that breaks its process costs one run only.

The pool sends jobs to a process, and receives results and the share of a job that is done, in the form in which
`multiprocessing` sends objects. A process ends when its standard input does, so that it never outlives the study,
even if that is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NoReturn

from specdec_core.cluster import LocalPool
from specdec_core.cluster.pool import Failure
from specdec_core.interface.errors import PluginError, PluginWarning
from specdec_core.study.progress import quiet_libraries
from specdec_core.study.run.worker import worker

_ENDING = 5.0
"""Seconds that a process may take to end after its last word."""


class ProcessEndedError(PluginError):
    """The process of a job ended before its result."""


class IsolatedPool(LocalPool):
    """Runs the jobs of each name in a separate process, and those without a name in this one.

    Plugins are those that are installed.
    """

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}

    def map(
        self,
        function: Callable[..., Any],
        jobs: Sequence[tuple[Any, ...]],
        *,
        own: str | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Yield the result of a function for each job; see `Pool.map`.

        Raises:
            SpecdecError: What a job raised, or `ProcessEndedError`.
        """
        if own is None:
            yield from super().map(function, jobs, **options)
            return
        process = self._processes.get(own) or self._processes.setdefault(own, _Process(own))
        for job in jobs:
            yield process.ask(function, job)

    def end(self, own: str) -> None:
        """End the process with a name, and those that a plugin started in it."""
        if own in self._processes:
            self._processes.pop(own).close()

    def close(self) -> None:
        """End all processes."""
        for own in list(self._processes):
            self.end(own)


class _Process:
    def __init__(self, name: str) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            start_new_session=True,  # Ctrl-C is for the study, which ends this process
        )

    def ask(self, function: Callable[..., Any], job: tuple[Any, ...]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _send(self._process.stdin, (function, job))
            while True:
                kind, answer = ForkingPickler.loads(_receive(self._process.stdout))
                if kind == "result":
                    return answer
                if kind == "failure":
                    raise answer.error()
                worker().advance(answer)
        except (OSError, EOFError):
            self._ended()

    def close(self) -> None:
        if hasattr(os, "killpg"):
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was not taken is of no use
                pipe and pipe.close()

    def _ended(self) -> NoReturn:
        try:
            code = self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            how = "closed its standard output"
        else:
            how = f"was ended by signal {_signal(-code)}" if code < 0 else f"exited with code {code}"
        raise ProcessEndedError(f"the process of {self._name} {how}")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _send(stream: IO[bytes], value: object) -> None:
    content = ForkingPickler.dumps(value)
    stream.write(len(content).to_bytes(8, "big"))
    stream.write(content)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    """Return what was sent, before it is read as an object: what that raises is a failure of a job.

    Raises:
        EOFError: The other process has ended.
    """
    head = stream.read(8)
    size = int.from_bytes(head, "big")
    content = stream.read(size)
    if len(head) < 8 or len(content) < size:
        raise EOFError
    return content


class _Study:
    """The study, as the process of a run sees it."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what plugins print is not an answer
        self.questions: SimpleQueue[bytes] = SimpleQueue()
        # A thread, to notice the end of the study also while something is decoded.
        threading.Thread(target=self._listen, args=[os.fdopen(os.dup(0), "rb")], daemon=True).start()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def answer(self, kind: str, answer: object) -> None:
        _send(self._answers, (kind, answer))

    def _listen(self, questions: IO[bytes]) -> None:
        with suppress(EOFError):
            while True:
                self.questions.put(_receive(questions))
        os._exit(0)


def main() -> None:
    """Run the jobs of a study, one after the other."""
    study = _Study()
    worker().advance = lambda share: study.answer("advance", share)
    with quiet_libraries(), warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # the study reports failures of plugins
        while True:
            question = study.questions.get()
            try:
                function, job = ForkingPickler.loads(question)
                study.answer("result", function(*job))
            except BaseException as error:  # sys.exit, too: the study ends this process
                study.answer("failure", Failure.of(error))


if __name__ == "__main__":
    main()
