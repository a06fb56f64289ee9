"""The session of a study that runs or is replayed: finished repeats, failures, and the journal of both."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from specdec_core.interface import Progress
from specdec_core.interface.errors import PluginWarning, SpecdecError, raised_text, without_home
from specdec_core.study.config.study import BASELINE, Run, Study, Task, with_task
from specdec_core.study.run.finished_repeats import Repeat, Repeats, RunKey
from specdec_core.study.run.folder import RESUMED, StorageError, when_stopped
from specdec_core.study.run.journal import Journal

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class StudyResult:
    """The measurements of a study.

    Attributes:
        study: The study.
        repeats: Every finished repeat.
        failed: Why each failed run was abandoned.
        provenance: Settings, versions and device, as plain data.
    """

    study: Study
    repeats: Repeats
    failed: Mapping[RunKey, str]
    provenance: Mapping[str, Any]

    def of_run(self, task: Task, run: str) -> dict[int, Repeat]:
        """Return the finished repeats of a run, by number."""
        return dict(sorted(self.repeats.of_run(task.name, run).items()))


class Session:
    """The finished and the failed parts of a study.

    Args:
        journal: Stores finished repeats; None stores nothing.

    Attributes:
        finished: The finished repeats.
        failed: Why each failed run was abandoned.
    """

    def __init__(self, journal: Journal | None) -> None:
        self.finished = Repeats() if journal is None else journal.finished
        self.failed: dict[RunKey, str] = {}
        self._journal = journal

    def done(self, task: Task, run: Run, number: int = 1) -> bool:
        """Return whether a repeat of a run is finished, or the run was abandoned."""
        return (task.name, run.name) in self.failed or (task.name, run.name, number) in self.finished

    def add(self, repeat: Repeat) -> None:
        """Keep a finished repeat; if there is a journal, it is on disk when this returns."""
        if self._journal is not None:
            self._journal.add(repeat)  # to `finished`, too
        else:
            self.finished.add(repeat)

    def attempt(self, tasks: Sequence[Task], run: Run, action: Callable[[], _Found]) -> _Found | None:
        """Do something for a run of some tasks; return None if it fails.

        Whatever its plugins raise, sys.exit too, ends this run only. No plugin takes part in the baseline, and
        without it there is nothing to compare: what it raises ends the study, which resumes.
        """
        try:
            return action()
        except (KeyboardInterrupt, StorageError):
            raise
        except BaseException as error:
            if run.name == BASELINE:
                raise
            why = without_home(str(error)) if isinstance(error, SpecdecError) else raised_text(error)
            self.failed.update({(task.name, run.name): why for task in tasks})
            return None

    def fail(self, tasks: Sequence[Task], runs: Sequence[Run], *, like: Run) -> None:
        """Abandon runs of some tasks for the reason for which another one was."""
        for task in tasks:
            self.failed.update({(task.name, run.name): self.failed[task.name, like.name] for run in runs})

    def stopped(self, total: str) -> str:
        """Return what a signal leaves behind, and the runs that failed before it.

        Args:
            total: How many repeats there are to finish: `12 repeats`.
        """
        failed = [with_task(task, f"{run} failed: {reason}") for (task, run), reason in self.failed.items()]
        return "\n".join([*failed, f"stopped; {self._stored(total)}"])

    def _stored(self, total: str) -> str:
        if self._journal is None:
            return "nothing was stored. With --output DIR, a stopped study can be resumed."
        folder = self._journal.path.parent
        return f"{len(self.finished)} of {total} are stored in {folder}. {RESUMED}"


@contextmanager
def open_session(
    output: Path | None,
    provenance: Callable[[], Mapping[str, Any]],
    progress: Progress,
    *,
    fresh: bool,
    count: int,
    unit: str,
    at_most: bool = False,
) -> Iterator[tuple[Session, Mapping[str, Any]]]:
    """Open the session of a study, or that of one that was stopped; yield it with the provenance.

    Args:
        output: Folder that stores finished repeats, which the caller has locked; None for none.
        provenance: Returns everything that must be equal for repeats to belong together.
        progress: Where progress is reported.
        fresh: Discard what an earlier study left in the folder.
        count: How many repeats there are to finish.
        unit: What they are called.
        at_most: Whether fewer may suffice.

    Raises:
        ConfigError: The folder holds the results of another study.
        StorageError: It cannot be written.
        KeyboardInterrupt: On Ctrl-C; the message says what was stored.
    """
    with warnings.catch_warnings():
        found = provenance()
        session = Session(None if output is None else Journal(output, found, fresh=fresh))
        warnings.simplefilter("ignore", PluginWarning)  # the result reports failures of plugins
        if session.finished:
            progress.measured({unit: count, "finished before": len(session.finished)})
        total = f"{'at most ' if at_most else ''}{count} {unit}"
        with when_stopped(lambda: session.stopped(total)):
            yield session, found
