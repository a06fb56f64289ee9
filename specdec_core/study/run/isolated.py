"""A run in a process of its own: what a plugin does to its process costs that run only.

The study and the process of a run exchange lines of JSON: the job, then the number of each repeat; back come what
was done, and each repeat as the journal holds it. The process ends when its standard input does, so that it never
outlives the study, even if that is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NoReturn

import torch

from specdec_core.interface import PluginKind, PluginWarning
from specdec_core.interface.errors import PluginError, SpecdecError, exception_text
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.interface.target import TargetConfig
from specdec_core.registry import default_registry, plugin_settings
from specdec_core.study.config.study import Run
from specdec_core.study.progress import quiet_libraries
from specdec_core.study.run.factory import load_target
from specdec_core.study.run.prepared import PreparedRun, RunJob
from specdec_core.study.run.repeats import Repeat

_ENDING = 5.0
"""Seconds that a process may take to end after its last word."""


class IsolatedRun:
    """A run in a process of its own, which loads the target by itself.

    Plugins are those that are installed.

    Args:
        target: Settings of the target.
        job: What to decode, and how.

    Raises:
        SpecdecError: If the run cannot be prepared, or its process ends meanwhile.
    """

    def __init__(self, target: TargetConfig, job: RunJob) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for the study, which ends this process
        )
        self._name = job.run.name
        self._doing = "loading and warming up"
        try:
            threads = torch.get_num_threads()
            self._ask({"target": target.model_dump(mode="json"), "threads": threads, **job_to_plain(job)})
            self._answer()
        except BaseException:
            self.close()
            raise

    def measure(self, number: int, progress: Callable[[float], None]) -> Repeat:
        """Decode all prompts once; see `PreparedRun.measure`.

        Raises:
            SpecdecError: If a plugin or the target fails, or the process ends.
        """
        self._doing = f"repeat {number}"
        self._ask(number)
        while "done" in (answer := self._answer()):
            progress(answer["done"])
        return Repeat.from_plain(answer["repeat"])

    def close(self) -> None:
        """End the process, and those that a plugin started in it."""
        if hasattr(os, "killpg"):
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was not taken is of no use
                pipe and pipe.close()

    def _ask(self, question: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except OSError:
            self._ended()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            self._ended()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PluginError(answer["error"])
        return answer

    def _ended(self) -> NoReturn:
        try:
            code = self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            how = "closed its standard output"
        else:
            how = f"was ended by signal {_signal(-code)}" if code < 0 else f"exited with code {code}"
        raise PluginError(f"the process of {self._name} {how} in the middle of {self._doing}.")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def job_to_plain(job: RunJob) -> dict[str, Any]:
    """Return a job as plain data."""
    return {
        "task": job.task,
        "run": job.run.resolved(),
        "sampling": job.sampling.model_dump(mode="json"),
        "generation": job.generation.model_dump(mode="json"),
        "batches": job.batches,
        "batch_size": job.batch_size,
        "folder": str(job.folder),
        "plugin_timeout": job.plugin_timeout,
        "warmup": job.warmup,
    }


def job_from_plain(plain: Mapping[str, Any]) -> RunJob:
    """Return the job that `job_to_plain` wrote."""
    registry, run = default_registry(), plain["run"]
    kinds: tuple[PluginKind, ...] = ("drafter", "gamma", "lenience", "rule")
    drafter, gamma, lenience, rule = (
        plugin_settings(registry, kind, run[kind]) if run.get(kind) else None for kind in kinds
    )
    own = run["draft_sampling"] and SamplingSettings.model_validate(run["draft_sampling"])
    return RunJob(
        plain["task"],
        Run(run["name"], drafter, gamma, lenience, own, rule=rule, draft_beams=run.get("draft_beams")),
        SamplingSettings.model_validate(plain["sampling"]),
        GenerationSettings.model_validate(plain["generation"]),
        plain["batches"],
        plain["batch_size"],
        Path(plain["folder"]),
        plain["plugin_timeout"],
        plain["warmup"],
    )


class _Study:
    """The study, as the process of a run sees it."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # what plugins print is no answer
        self.questions: SimpleQueue[Any] = SimpleQueue()
        # A thread, to notice the end of the study also while something is decoded.
        threading.Thread(target=self._listen, args=[os.fdopen(os.dup(0), encoding="utf-8")], daemon=True).start()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def answer(self, **answer: object) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def _listen(self, questions: IO[str]) -> None:
        for line in questions:
            self.questions.put(json.loads(line))
        os._exit(0)


def main() -> None:
    """Serve a study: prepare a run, then time it as often as asked."""
    study = _Study()
    try:
        with quiet_libraries(), warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)  # the study reports failures of plugins
            plain = study.questions.get()
            torch.set_num_threads(plain["threads"])
            job = job_from_plain(plain)
            target = load_target(TargetConfig.model_validate(plain["target"]), job.folder)
            prepared = PreparedRun(target, job, default_registry())
            study.answer(ready=True)
            while True:
                repeat = prepared.measure(study.questions.get(), lambda share: study.answer(done=share))
                study.answer(repeat=repeat.to_plain())
    except BaseException as error:  # sys.exit, too: the study ends this process
        study.answer(error=str(error) if isinstance(error, SpecdecError) else exception_text(error))


if __name__ == "__main__":
    main()
